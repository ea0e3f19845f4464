// Sound through WebAudio while it arrives, without gaps where the server is fast enough.

const LEAD = 0.06; // seconds between scheduling and sounding

export class Player {
  // Must be made in answer to a key or a click: browsers keep others silent.
  constructor(rateHz) {
    this.rateHz = rateHz;
    this.context = new AudioContext({ sampleRate: rateHz });
    this.context.resume();
    this.begin(0);
  }

  // Forgets what was scheduled; `total` seconds are to come, 0 if nobody knows.
  begin(total) {
    this.silence();
    this.total = total;
    this.arrived = 0;
    this.waiting = [];
    this.began = performance.now();
  }

  // Int16Array that follows what was added before.
  add(samples) {
    this.waiting.push(samples);
    this.arrived += samples.length / this.rateHz;
    const isFirst = !this.pieces.length;
    const isDry = this.end < this.context.currentTime;
    if (isFirst || !isDry || this.#lasts()) this.#schedule();
  }

  // No more will come.
  finish() {
    this.#schedule();
  }

  // All of a sound, from so many seconds on.
  play(parts, from) {
    this.begin(0);
    this.played = Math.round(from * this.rateHz);
    let skip = this.played;
    for (const part of parts) {
      if (skip < part.length) this.waiting.push(skip ? part.subarray(skip) : part);
      skip = Math.max(0, skip - part.length);
    }
    this.#schedule();
  }

  silence() {
    for (const { node } of this.pieces ?? []) node.stop();
    this.pieces = [];
    this.played = 0; // samples that were scheduled
    this.end = 0; // on the context's clock
  }

  close() {
    this.silence();
    this.context.close();
  }

  get isSounding() {
    return this.pieces.length > 0 && this.context.currentTime < this.end;
  }

  // Seconds of the sound that have been heard.
  get position() {
    const now = this.context.currentTime;
    const piece = this.pieces.findLast(({ start }) => start <= now);
    return piece ? piece.from + Math.min(piece.seconds, now - piece.start) : 0;
  }

  // After a gap: whether the rest is made before what is there has been played.
  #lasts() {
    const speed = this.arrived / ((performance.now() - this.began) / 1000);
    return (this.total - this.arrived) / speed <= this.total - this.played / this.rateHz;
  }

  #schedule() {
    const length = this.waiting.reduce((sum, part) => sum + part.length, 0);
    if (!length) return;
    const buffer = this.context.createBuffer(1, length, this.rateHz);
    const channel = buffer.getChannelData(0);
    let at = 0;
    for (const part of this.waiting) for (const sample of part) channel[at++] = sample / 32768;
    this.waiting = [];
    const node = this.context.createBufferSource();
    node.buffer = buffer;
    node.connect(this.context.destination);
    const now = this.context.currentTime;
    const start = this.end > now ? this.end : now + LEAD;
    node.start(start);
    this.pieces.push({ node, start, from: this.played / this.rateHz, seconds: buffer.duration });
    this.played += length;
    this.end = start + buffer.duration;
  }
}
