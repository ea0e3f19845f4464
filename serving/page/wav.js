// WAV: the samples of a stream as it comes, and files of 16-bit samples.

const HEAD = 44; // bytes before the samples of a stream

// Int16Arrays of the samples in chunks of bytes, as they come.
export async function* samplesOf(chunks) {
  let kept = new Uint8Array(0);
  let skip = HEAD;
  for await (const chunk of chunks) {
    let bytes = joined(kept, chunk);
    const skipped = Math.min(skip, bytes.length);
    skip -= skipped;
    bytes = bytes.slice(skipped);
    const even = bytes.length & ~1;
    kept = bytes.slice(even);
    if (even) yield new Int16Array(bytes.buffer, 0, even / 2);
  }
}

// A WAV file of mono samples in parts of Int16Array.
export function fileOf(parts, rateHz) {
  const bytes = 2 * parts.reduce((sum, part) => sum + part.length, 0);
  const head = new DataView(new ArrayBuffer(HEAD));
  const word = (at, text) => [...text].forEach((c, n) => head.setUint8(at + n, c.charCodeAt(0)));
  word(0, "RIFF");
  head.setUint32(4, HEAD - 8 + bytes, true);
  word(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); // PCM
  head.setUint16(22, 1, true); // mono
  head.setUint32(24, rateHz, true);
  head.setUint32(28, 2 * rateHz, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  word(36, "data");
  head.setUint32(40, bytes, true);
  return new Blob([head, ...parts], { type: "audio/wav" });
}

// A recording as the server reads it: WAV and FLAC as they are, what else the browser can decode as
// WAV at that rate.
export async function recordingOf(file, rateHz) {
  const start = String.fromCharCode(...new Uint8Array(await file.slice(0, 4).arrayBuffer()));
  if (start === "RIFF") return new Blob([file], { type: "audio/wav" });
  if (start === "fLaC") return new Blob([file], { type: "audio/flac" });
  const context = new OfflineAudioContext(1, 1, rateHz);
  let sound;
  try {
    sound = await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is no sound that this browser can read.`);
  }
  const mono = new Int16Array(sound.length);
  const channels = Array.from({ length: sound.numberOfChannels }, (_, n) => sound.getChannelData(n));
  for (let n = 0; n < mono.length; n++) {
    const mean = channels.reduce((sum, channel) => sum + channel[n], 0) / channels.length;
    mono[n] = Math.round(32767 * Math.max(-1, Math.min(1, mean)));
  }
  return fileOf([mono], rateHz);
}

function joined(first, second) {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}
