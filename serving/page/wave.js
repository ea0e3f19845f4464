// Waveform and spectrogram of a sound, drawn column by column as it arrives.

const SIZE = 512; // samples of a spectrum
const LOUD = -25; // dB of a full-scale sine: the last colour
const QUIET = -95; // the first one
const LOWEST_SCALE = 0.1; // of a waveform's height
const AXIS = 18; // CSS pixels below the spectrogram
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300]; // seconds between two marks

const WINDOW = Float32Array.from({ length: SIZE }, (_, n) => 0.5 - 0.5 * Math.cos((2 * Math.PI * n) / SIZE));

export class Wave {
  constructor(wave, spectrum) {
    this.wave = wave.getContext("2d");
    this.spectrum = spectrum.getContext("2d");
    this.begin(0, 0);
    new ResizeObserver(() => this.redraw()).observe(wave);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  // A new sound of `total` samples to come.
  begin(rateHz, total) {
    this.rateHz = rateHz;
    this.total = total;
    this.samples = new Int16Array(total);
    this.length = 0;
    this.isWhole = false;
    this.redraw();
  }

  add(part) {
    const known = part.subarray(0, this.total - this.length);
    this.samples.set(known, this.length);
    this.length += known.length;
    this.#draw();
  }

  // What is there is all: it fills the width.
  finish() {
    this.isWhole = true;
    this.total = this.length;
    this.redraw();
  }

  redraw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.colours = { ink: colour("--accent"), soft: colour("--soft"), line: colour("--line") };
    this.ramp = rampOf([0, 1, 2, 3].map((n) => colour(`--ramp-${n}`)));
    this.scale = LOWEST_SCALE;
    this.ratio = Math.min(2, devicePixelRatio);
    for (const { canvas } of [this.wave, this.spectrum]) {
      canvas.width = Math.round(canvas.clientWidth * this.ratio); // which also clears it
      canvas.height = Math.round(canvas.clientHeight * this.ratio);
    }
    this.columns = 0; // of the waveform that are drawn
    this.spectra = 0; // of the spectrogram
    this.#ground();
    this.#draw();
  }

  #sampleAt(column, width) {
    return Math.floor((column * this.total) / width);
  }

  #draw() {
    const { width, height } = this.wave.canvas;
    const middle = height / 2;
    this.wave.fillStyle = this.colours.ink;
    while (this.columns < width && this.length) {
      const start = this.#sampleAt(this.columns, width);
      const end = Math.max(this.#sampleAt(this.columns + 1, width), start + 1);
      if (end > this.length) break;
      const [low, high] = this.#extremes(start, end);
      const peak = Math.max(high, -low);
      if (peak > this.scale) { // what is drawn already has to be drawn lower
        this.scale = 1.1 * peak;
        this.wave.clearRect(0, 0, width, height);
        this.columns = 0;
        continue;
      }
      const tall = Math.max(this.ratio, ((high - low) / this.scale) * middle);
      this.wave.fillRect(this.columns++, middle - (high / this.scale) * middle, 1, tall);
    }
    this.#drawSpectra();
  }

  #drawSpectra() {
    const { width, height: all } = this.spectrum.canvas;
    const height = all - Math.round(AXIS * this.ratio);
    if (!this.length || height <= 0) return;
    for (; this.spectra < width; this.spectra++) {
      const centre = this.#sampleAt(this.spectra + 0.5, width);
      if (centre >= this.length || (centre + SIZE / 2 > this.length && !this.isWhole)) break;
      this.#column(this.spectra, height, this.#decibels(centre));
    }
  }

  #column(x, height, decibels) {
    const image = this.spectrum.createImageData(1, height);
    for (let y = 0; y < height; y++) {
      const place = ((height - 1 - y) / height) * (SIZE / 2 - 1);
      const bin = Math.floor(place);
      const value = decibels[bin] + (place - bin) * (decibels[bin + 1] - decibels[bin]);
      const level = Math.max(0, Math.min(255, Math.round((255 * (value - QUIET)) / (LOUD - QUIET))));
      image.data.set(this.ramp.subarray(4 * level, 4 * level + 4), 4 * y);
    }
    this.spectrum.putImageData(image, x, 0);
  }

  #extremes(start, end) {
    let low = 32767;
    let high = -32768;
    for (let n = start; n < end; n++) {
      low = Math.min(low, this.samples[n]);
      high = Math.max(high, this.samples[n]);
    }
    return [low / 32768, high / 32768];
  }

  #decibels(centre) {
    const real = new Float32Array(SIZE);
    const imaginary = new Float32Array(SIZE);
    for (let n = 0; n < SIZE; n++) {
      const at = centre - SIZE / 2 + n;
      if (at >= 0 && at < this.length) real[n] = (WINDOW[n] * this.samples[at]) / 32768;
    }
    transform(real, imaginary);
    const sine = SIZE / 4; // what a full-scale sine comes to under this window
    return Float32Array.from({ length: SIZE / 2 + 1 }, (_, n) =>
      20 * Math.log10(Math.hypot(real[n], imaginary[n]) / sine + 1e-9));
  }

  // An empty plot: a line of silence, a sheet, and the time below it.
  #ground() {
    const { wave, spectrum, ratio, colours } = this;
    const { width, height } = spectrum.canvas;
    const bottom = height - AXIS * ratio;
    wave.fillStyle = spectrum.fillStyle = colours.line;
    wave.fillRect(0, wave.canvas.height / 2, width, ratio);
    spectrum.fillStyle = `rgb(${this.ramp.subarray(0, 3).join()})`;
    spectrum.fillRect(0, 0, width, bottom);
    const seconds = this.total / this.rateHz;
    const step = STEPS.find((n) => n * width > 52 * ratio * seconds) ?? STEPS.at(-1);
    spectrum.font = `${11 * ratio}px system-ui, sans-serif`;
    for (let n = 0; n * step < seconds; n++) {
      const x = (n * step * width) / seconds;
      spectrum.fillStyle = colours.line;
      spectrum.fillRect(Math.round(x), bottom, ratio, 5 * ratio);
      spectrum.fillStyle = colours.soft;
      if (x + 30 * ratio < width) spectrum.fillText(`${+(n * step).toFixed(1)} s`, x + 4 * ratio, height - 3 * ratio);
    }
  }
}

// 256 colours RGBA between a few.
function rampOf(colours) {
  const stops = colours.map((text) => [1, 3, 5].map((n) => parseInt(text.slice(n, n + 2), 16)));
  const ramp = new Uint8ClampedArray(4 * 256);
  for (let n = 0; n < 256; n++) {
    const place = (n / 256) * (stops.length - 1);
    const low = Math.floor(place);
    const mixed = stops[low].map((value, c) => value + (place - low) * (stops[low + 1][c] - value));
    ramp.set([...mixed, 255], 4 * n);
  }
  return ramp;
}

// The discrete Fourier transform in place (Cooley and Tukey 1965, radix 2).
function transform(real, imaginary) {
  const size = real.length;
  for (let n = 1, mirrored = 0; n < size; n++) {
    let bit = size >> 1;
    for (; mirrored & bit; bit >>= 1) mirrored ^= bit;
    mirrored ^= bit;
    if (n < mirrored) [real[n], real[mirrored]] = [real[mirrored], real[n]];
  }
  for (let half = 1; half < size; half *= 2) {
    for (let n = 0; n < half; n++) {
      const cosine = Math.cos((Math.PI * n) / half);
      const sine = -Math.sin((Math.PI * n) / half);
      for (let even = n; even < size; even += 2 * half) {
        const odd = even + half;
        const re = real[odd] * cosine - imaginary[odd] * sine;
        const im = real[odd] * sine + imaginary[odd] * cosine;
        real[odd] = real[even] - re;
        imaginary[odd] = imaginary[even] - im;
        real[even] += re;
        imaginary[even] += im;
      }
    }
  }
}
