// One core of plain C++ running a WaveNet one sample at a time: what the sampler is compared with.
//
//   ar_limit LAYERS STACKS WIDTH RESIDUAL GATE SKIP OUTPUTS BUNCH HEAD RECENT BATCH STEPS
//
// A step of the layers stands for BUNCH samples. With HEAD units, a gated head draws each of these
// from what the layers gave and RECENT past numbers; with HEAD 0 there is WaveNet's head, BUNCH is 1.
//
// Prints {"samples_per_second": ..., "gflops_per_second": ..., "checksum": ...}. Weights are random,
// there is no condition, and the draw is a stand-in. Outputs of every product are in blocks of 64, so
// channel counts must be multiples of 64 (OUTPUTS is rounded up, HEAD may be 0); BATCH is 1 or a multiple of 4.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <vector>

// As wide as a register: compilers keep sums of wider or less aligned vectors in memory, which takes
// several times as long.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
constexpr int kBlock = 64, kVectors = kBlock / kLanes;
typedef float Vector __attribute__((vector_size(4 * kLanes)));

static Vector load(const float *from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

static void store(float *to, Vector value) { std::memcpy(to, &value, sizeof value); }

// y [rows, outputs] += x [rows, inputs] times one block of weights [inputs, kBlock].
template <int rows>
static inline void multiply_block(const float *weights, const float *x, int x_stride, float *y,
                                  int y_stride, int inputs) {
  Vector sums[rows][kVectors];
  for (int row = 0; row < rows; row++)
    for (int v = 0; v < kVectors; v++) sums[row][v] = load(y + row * y_stride + v * kLanes);
  for (int i = 0; i < inputs; i++, weights += kBlock) {
    Vector now[kVectors];
    for (int v = 0; v < kVectors; v++) now[v] = load(weights + v * kLanes);
    for (int row = 0; row < rows; row++)
      for (int v = 0; v < kVectors; v++) sums[row][v] += x[row * x_stride + i] * now[v];
  }
  for (int row = 0; row < rows; row++)
    for (int v = 0; v < kVectors; v++) store(y + row * y_stride + v * kLanes, sums[row][v]);
}

// y [batch, outputs] += x [batch, inputs] times weights, block after block of 64 outputs.
static void multiply(const float *weights, const float *x, float *y, int batch, int inputs,
                     int outputs) {
  for (int o = 0; o < outputs; o += kBlock, weights += inputs * kBlock) {
    if (batch == 1) multiply_block<1>(weights, x, inputs, y + o, outputs, inputs);
    for (int row = 0; row + 4 <= batch; row += 4)
      multiply_block<4>(weights, x + row * inputs, inputs, y + row * outputs + o, outputs, inputs);
  }
}

// A continued fraction, good to 1e-4: good enough for a limit, not for a model.
static inline float quick_tanh(float x) {
  x = std::fmin(std::fmax(x, -4.97f), 4.97f);
  const float x2 = x * x;
  return x * (135135.f + x2 * (17325.f + x2 * (378.f + x2))) /
         (135135.f + x2 * (62370.f + x2 * (3150.f + x2 * 28.f)));
}

static inline float quick_sigmoid(float x) { return 0.5f + 0.5f * quick_tanh(0.5f * x); }

// Weights begin at a cache line: no vector of them lies across two.
template <class T>
struct OnLines {
  using value_type = T;
  T *allocate(size_t count) {
    return static_cast<T *>(::operator new(count * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T *memory, size_t) { ::operator delete(memory, std::align_val_t{64}); }
  bool operator==(const OnLines &) const { return true; }
  bool operator!=(const OnLines &) const { return false; }
};

using Floats = std::vector<float, OnLines<float>>;

struct Layer {
  int dilation;
  Floats gate, residual_and_skip, queue;  // queue [(width - 1) dilation, batch, residual]
};

struct Network {
  int layers, stacks, width, residual, gate, skip, outputs, bunch, head, recent, batch;
  std::vector<Layer> stack;
  Floats given_head, recent_head, head1, head2;
  Floats hidden, taps, sums, units, update, skips, given, gates, past, middle, out, wave;

  double flops_per_sample() const {
    const double stack = layers * (2.0 * width * residual * gate + gate * (residual + skip));
    if (!head) return 2.0 * (stack + 1.0 * skip * skip + 1.0 * skip * outputs);
    return 2.0 * (stack / bunch + 2.0 * head * (skip + recent) + 1.0 * head * (head + outputs));
  }
};

static void build(Network &net) {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-0.1f, 0.1f);
  auto weights = [&](int inputs, int outputs) {
    Floats values(inputs * outputs);
    for (float &value : values) value = uniform(random);
    return values;
  };
  for (int i = 0; i < net.layers; i++) {
    const int dilation = 1 << i % (net.layers / net.stacks);
    net.stack.push_back({dilation, weights(net.width * net.residual, 2 * net.gate),
                         weights(net.gate, net.residual + net.skip),
                         Floats((net.width - 1) * dilation * net.batch * net.residual)});
  }
  const int units = net.head ? net.head : net.skip;
  net.given_head = weights(net.skip, net.bunch * 2 * net.head);
  net.recent_head = weights(net.recent, 2 * net.head);
  net.head1 = weights(units, units);
  net.head2 = weights(units, net.outputs);
  const int batch = net.batch;
  net.given.resize(batch * net.bunch * 2 * net.head);
  net.gates.resize(batch * 2 * net.head);
  net.past.resize(batch * net.recent);
  net.hidden.resize(batch * net.residual);
  net.taps.resize(batch * net.width * net.residual);
  net.sums.resize(batch * 2 * net.gate);
  net.units.resize(batch * std::max(net.gate, net.head));
  net.update.resize(batch * (net.residual + net.skip));
  net.skips.resize(batch * net.skip);
  net.middle.resize(batch * units);
  net.out.resize(batch * net.outputs);
  net.wave.resize(batch);
}

// Lays the taps of every row side by side, and the present input in the place of the oldest.
static void gather_taps(Network &net, Layer &layer, int time) {
  const int row = net.residual, slots = (net.width - 1) * layer.dilation;
  for (int tap = 0; tap < net.width; tap++) {
    const int lag = (net.width - 1 - tap) * layer.dilation;
    const float *from = lag ? &layer.queue[(time + slots - lag) % slots * net.batch * row]
                            : net.hidden.data();
    for (int b = 0; b < net.batch; b++)
      std::memcpy(&net.taps[(b * net.width + tap) * row], from + b * row, row * sizeof(float));
  }
  std::memcpy(&layer.queue[time % slots * net.batch * row], net.hidden.data(),
              net.batch * row * sizeof(float));
}

static void run_layer(Network &net, Layer &layer, int time) {
  const int batch = net.batch, residual = net.residual, gate = net.gate, skip = net.skip;
  gather_taps(net, layer, time);
  std::fill(net.sums.begin(), net.sums.end(), 0.f);
  multiply(layer.gate.data(), net.taps.data(), net.sums.data(), batch, net.width * residual,
           2 * gate);
  for (int b = 0; b < batch; b++) {
    const float *sums = &net.sums[b * 2 * gate];
    float *units = &net.units[b * gate];
    for (int c = 0; c < gate; c++) units[c] = quick_tanh(sums[c]) * quick_sigmoid(sums[gate + c]);
  }
  std::fill(net.update.begin(), net.update.end(), 0.f);
  multiply(layer.residual_and_skip.data(), net.units.data(), net.update.data(), batch, gate,
           residual + skip);
  for (int b = 0; b < batch; b++) {
    const float *update = &net.update[b * (residual + skip)];
    float *hidden = &net.hidden[b * residual], *skips = &net.skips[b * skip];
    for (int c = 0; c < residual; c++) hidden[c] = (hidden[c] + update[c]) * 0.7071f;
    for (int c = 0; c < skip; c++) skips[c] += update[residual + c];
  }
}

static void rectify(Floats &values) {
  for (float &value : values) value = value > 0 ? value : 0;
}

// The two last layers of the head, and the stand-in for a draw.
static void draw(Network &net, const Floats &units, int inputs, int time) {
  std::fill(net.middle.begin(), net.middle.end(), 0.f);
  multiply(net.head1.data(), units.data(), net.middle.data(), net.batch, inputs, inputs);
  rectify(net.middle);
  std::fill(net.out.begin(), net.out.end(), 0.f);
  multiply(net.head2.data(), net.middle.data(), net.out.data(), net.batch, inputs, net.outputs);
  for (int b = 0; b < net.batch; b++)
    net.wave[b] = quick_tanh(net.out[b * net.outputs] + 0.01f * (time % 100));
}

// The samples of a bunch one after another, each from the past numbers and its part of `given`.
static void draw_bunch(Network &net, int time) {
  const int gates = 2 * net.head, row = net.bunch * gates;
  std::fill(net.given.begin(), net.given.end(), 0.f);
  multiply(net.given_head.data(), net.skips.data(), net.given.data(), net.batch, net.skip, row);
  for (int i = 0; i < net.bunch; i++) {
    for (int b = 0; b < net.batch; b++) {
      float *past = &net.past[b * net.recent];
      std::memmove(past, past + 1, (net.recent - 1) * sizeof(float));
      past[net.recent - 1] = net.wave[b];
      std::memcpy(&net.gates[b * gates], &net.given[b * row + i * gates], gates * sizeof(float));
    }
    multiply(net.recent_head.data(), net.past.data(), net.gates.data(), net.batch, net.recent,
             gates);
    for (int b = 0; b < net.batch; b++)
      for (int c = 0; c < net.head; c++)
        net.units[b * net.head + c] = quick_tanh(net.gates[b * gates + c]) *
                                      quick_sigmoid(net.gates[b * gates + net.head + c]);
    draw(net, net.units, net.head, time);
  }
}

static void run_step(Network &net, int time) {
  for (int b = 0; b < net.batch; b++)
    for (int c = 0; c < net.residual; c++)
      net.hidden[b * net.residual + c] = net.wave[b] * 0.1f * (c + 1) / net.residual;
  std::fill(net.skips.begin(), net.skips.end(), 0.f);
  for (Layer &layer : net.stack) run_layer(net, layer, time);
  rectify(net.skips);
  if (net.head)
    draw_bunch(net, time);
  else
    draw(net, net.skips, net.skip, time);
}

int main(int count, char **arguments) {
  if (count != 13) {
    std::fprintf(stderr, "12 numbers are needed, see the first lines of ar_limit.cpp\n");
    return 2;
  }
  int given[12];
  for (int i = 0; i < 12; i++) given[i] = std::atoi(arguments[i + 1]);
  const int outputs = (given[6] + kBlock - 1) / kBlock * kBlock, steps = given[11];
  Network net{given[0], given[1], given[2], given[3], given[4], given[5], outputs, given[7],
              given[8], given[9], given[10], {}, {}, {}, {}, {}, {}, {}, {}, {},
              {}, {}, {}, {}, {}, {}, {}, {}};
  if (net.residual % kBlock || net.gate % kBlock || net.skip % kBlock || net.head % kBlock ||
      net.bunch < 1 || (net.head ? net.recent < 1 : net.bunch != 1) ||
      (net.batch != 1 && net.batch % 4)) {
    std::fprintf(stderr, "channels must be multiples of 64, the batch 1 or a multiple of 4, the bunch 1\n"
                         "without a head, RECENT at least 1 with one\n");
    return 2;
  }
  build(net);
  double checksum = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int time = 0; time < steps; time++) {
    run_step(net, time);
    for (float sample : net.wave) checksum += sample;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const double rate = double(steps) * net.bunch * net.batch / taken.count();
  std::printf("{\"samples_per_second\": %.1f, \"gflops_per_second\": %.2f, \"checksum\": %g}\n", rate,
              rate * net.flops_per_sample() / 1e9, checksum);
}
