#include "loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace {

constexpr double LEAST_MASS = 0.01;  // of a mask's classes, to divide by it at once: from there on hardly a digit cancels
constexpr double INF = std::numeric_limits<double>::infinity();

// -- functions: float32 by the fits of catnat.core.fits, which the compiler's command line holds ---------------------

constexpr float EXP[] = {FIT_EXP}, LOG_ONE_PLUS[] = {FIT_LOG_ONE_PLUS};

template <int N> float power(float v) { if constexpr (N == 1) return v; else return power<N / 2>(v) * power<N / 2>(v); }

template <int N> float poly(const float* c, float v) {  // in halves, so that few steps wait for one another
  constexpr int low = N > 8 ? 8 : N > 4 ? 4 : N > 2 ? 2 : 1;
  if constexpr (N == 1) return c[0]; else return poly<low>(c, v) + power<low>(v) * poly<N - low>(c + low, v);
}
#ifdef __aarch64__  // one instruction here, a call elsewhere; b if a is NaN
template <class T> T least_of(T a, T b) { return std::fmin(a, b); }
template <class T> T most_of(T a, T b) { return std::fmax(a, b); }
#else
template <class T> T least_of(T a, T b) { return a < b ? a : b; }
template <class T> T most_of(T a, T b) { return a > b ? a : b; }
#endif
float exp_minus(float w) {  // exp(-w) for w >= 0; 0 from 88 on
  w = 88.0f < w ? 88.0f : w;  // lets NaN through
  constexpr float shift = 0x1.8p23f + 127;  // leaves a whole number in the lowest bits: the exponent of a power of two
  const float shifted = shift - w * 1.44269504f, r = (shift - shifted) * 0.693147181f - w;
  const float power_of_two = std::bit_cast<float>(std::bit_cast<int32_t>(shifted) << 23);
  return power_of_two + power_of_two * (r + r * r * poly<std::size(EXP)>(EXP, r));
}
float log_one_plus(float t) { return t + t * t * poly<std::size(LOG_ONE_PLUS)>(LOG_ONE_PLUS, t); }  // t in [0, 1]
double exp_minus(double w) { return std::exp(-w); }
double log_one_plus(double t) { return std::log1p(t); }

template <class T> double sum(const T* values, int64_t count) {  // in float a million classes would lose two digits
  double lanes[4] = {};
  for (; count >= 4; count -= 4, values += 4) for (int lane = 0; lane < 4; ++lane) lanes[lane] += values[lane];
  for (; count > 0; --count) lanes[0] += values[count - 1];
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// -- vectors, as wide as the processor's ------------------------------------------------------------------------------

#if defined __AVX512F__
constexpr int BYTES = 64;
#elif defined __AVX__
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
template <class T> constexpr int64_t V = BYTES / sizeof(T);
template <class T> struct Vector { typedef T type __attribute__((vector_size(BYTES))); };
template <class T> using Lanes = typename Vector<T>::type;
template <class T> using Whole = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <class T> Lanes<T> load(const T* from) { Lanes<T> a; std::memcpy(&a, from, BYTES); return a; }
template <class T> void store(T* to, Lanes<T> a) { std::memcpy(to, &a, BYTES); }

// Lane i comes from lane `From::of(i)` of a, and of b from V on.
template <class From, class T, size_t... L> Lanes<T> pick(Lanes<T> a, Lanes<T> b, std::index_sequence<L...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, From::of(L)...);
#else
  return __builtin_shuffle(a, b, Lanes<Whole<T>>{From::of(L)...});
#endif
}
template <class From, class T> Lanes<T> pick(Lanes<T> a, Lanes<T> b) {
  return pick<From, T>(a, b, std::make_index_sequence<V<T>>{});
}
template <int BY> struct Over { static constexpr int of(int i) { return i / BY; } };
template <int FIRST> struct Twice { static constexpr int of(int i) { return FIRST + i / 2; } };
template <int OFFSET> struct Every { static constexpr int of(int i) { return 2 * i + OFFSET; } };
template <class T> Lanes<T> sum_of_pairs(Lanes<T> a, Lanes<T> b) {
  return pick<Every<0>, T>(a, b) + pick<Every<1>, T>(a, b);
}
template <class T> Lanes<T> first_lanes(int64_t count, Lanes<T> a, Lanes<T> b) {  // those of a, then b's
  for (int64_t i = 0; i < V<T>; ++i) a[i] = i < count ? a[i] : b[i];
  return a;
}

// -- one node --------------------------------------------------------------------------------------------------------

template <class T> struct Node {
  Kind kind;
  T gain, joint, steepest;
  float fit[LONG] = {};

  explicit Node(const Settings<T>& is) : kind(is.kind), gain(is.gain), joint(is.joint), steepest(is.steepest) {
    std::copy(is.fit, is.fit + LONG, fit);
  }
  template <int N> T fitted(T y) const {
    const T inside = most_of(least_of(y, joint), -joint), v = inside * inside;
    return steepest * (y - inside) + (inside + v * inside * poly<N>(fit, v));
  }
  T natural(T y) const {
    const T inside = std::clamp(y, -joint, joint);
    return T(2 * std::asinh(std::tan(inside / 2.0))) + steepest * (y - inside);
  }
};

// -- the tree --------------------------------------------------------------------------------------------------------

template <class T> struct Loops {
  struct Buffer : std::unique_ptr<T[]> {
    explicit Buffer(int64_t size) : std::unique_ptr<T[]>(new T[size]) {}  // whatever is in it
  };
  const Settings<T>& is;
  const int64_t K = is.K, N = is.N;

  // The log-odds of at most BLOCK nodes.
  void logits(const Node<T>& node, const T* own, const T* shift, int64_t n, T* z) const {
    if (node.kind == SIGMOID) for (int64_t j = 0; j < n; ++j) z[j] = own[j] + shift[j];
    const auto y = [=, gain = node.gain](int64_t j) { return gain * own[j] + shift[j]; };
    if (node.kind == FITTED) for (int64_t j = 0; j < n; ++j) z[j] = node.template fitted<SHORT>(y(j));
    if (node.kind == FITTED_LONG) for (int64_t j = 0; j < n; ++j) z[j] = node.template fitted<LONG>(y(j));
    if (node.kind == NATURAL) for (int64_t j = 0; j < n; ++j) z[j] = node.natural(y(j));
  }
  // log(1-a) and log(a) of nodes, one after the other, in short loops for the sake of the vector code.
  void branches(const T* x, const T* shifts, int64_t count, T* turns) const {
    const Node<T> node(is);  // a copy, which no store can change
    T z[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK, turns += 2 * BLOCK) {
      const int64_t n = std::min(BLOCK, count - first);
      logits(node, x + first, shifts + first, n, z);
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) {
        const T common = log_one_plus(exp_minus(std::abs(z[j])));
        turns[2 * j] = least_of(-z[j], T(0)) - common;
        turns[2 * j + 1] = least_of(z[j], T(0)) - common;
      }
    }
  }
  // Their gradients from those in log p, summed below every branch: dz/dx ((1-a) right - a left). The odds' root,
  // e^(-|z| / 2), is all that it takes. What stands below may be read a vector past its end.
  void pull(const T* x, const T* shifts, int64_t count, const T* below, T* dx) const {
    const Node<T> node(is);
    const T gain = node.gain, steepest = node.steepest;
    T z[BLOCK], found[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK, below += 2 * BLOCK) {
      const int64_t n = std::min(BLOCK, count - first), whole = (n + V<T> - 1) / V<T> * V<T>;
      logits(node, x + first, shifts + first, n, z);
      std::fill(z + n, z + whole, T(0));
#pragma GCC ivdep
      for (int64_t j = 0; j < whole; ++j) {  // a rest would be rounded otherwise
        const T root = exp_minus(std::abs(z[j]) / 2), odds = root * root;
        const bool is_natural = T(0.5) * (1 + odds) < steepest * root;  // so its slope is the lesser one
        const T slope = gain * (is_natural ? T(0.5) : steepest) / (is_natural ? root : 1 + odds);  // by 1 + odds
        found[j] = slope * ((z[j] < 0 ? 1 : odds) * below[2 * j + 1] - (z[j] < 0 ? odds : 1) * below[2 * j]);
      }
      std::copy(found, found + n, dx + first);
    }
  }

  // Along one row's tree: turns[2i] and turns[2i + 1] belong to node i, at[p] to place p.
  template <class F> void each_node(bool upwards, int64_t top, F visit) const {  // all but the first `top` levels
    for (int64_t step = top; step < is.depth; ++step) {
      const auto [low, high] = is.levels[upwards ? is.depth - 1 + top - step : step];
      if (!is.node_places) {
#pragma GCC ivdep
        for (int64_t i = low; i < high; ++i) visit(i, i);
      } else
        for (int64_t i = low; i < high; ++i) visit(i, is.node_places[i - 1]);
    }
  }
  void sum_below(const T* of_classes, T* at) const {  // at every place but the root
    if (!is.class_places) std::copy(of_classes, of_classes + K, at + K);
    else for (int64_t k = 0; k < K; ++k) at[is.class_places[k]] = of_classes[k];
    each_node(true, 1, [=](int64_t i, int64_t p) { at[p] = at[2 * i] + at[2 * i + 1]; });
  }
  void sum_paths(const T* turns, T* at, T* of_classes) const {
    at[1] = 0;
    each_node(false, 0, [=](int64_t i, int64_t p) {
      at[2 * i] = at[p] + turns[2 * i], at[2 * i + 1] = at[p] + turns[2 * i + 1];
    });
    if (!is.class_places) std::copy(at + K, at + 2 * K, of_classes);
    else for (int64_t k = 0; k < K; ++k) of_classes[k] = at[is.class_places[k]];
  }
  void numbers_of(const uint8_t* mask, T* found) const {  // 1 or 0, whatever the byte of a true bool is
    for (int64_t k = 0; k < K; ++k) found[k] = std::min<uint8_t>(mask[k], 1);
  }
  // Divides by the mass of the allowed classes. False where that is small, since too many digits would cancel; where it
  // is NaN; and where one class is allowed, which the tree makes exactly certain.
  bool renormalize(const uint8_t* mask, T* allowed, T* p, T* log_p) const {
    numbers_of(mask, allowed);
    for (int64_t k = 0; k < K; ++k) {
      p[k] = allowed[k] * exp_minus(-log_p[k]);
    }
    const double mass = sum(p, K);
    if (!(mass > LEAST_MASS) || sum(allowed, K) == 1) return false;
    const T log_mass = T(std::log(mass)), none = -T(INF);
    for (int64_t k = 0; k < K; ++k) {
      const T own = least_of(log_p[k] - log_mass, T(0));
      log_p[k] = allowed[k] != 0 ? own : none;
    }
    return true;
  }
  // Makes the branches those of the masked tree: each counts times the mass of the allowed classes below it, divided by
  // the mass below its node.
  void mask_branches(const uint8_t* mask, T* turns, T* allowed, T* mass) const {
    numbers_of(mask, mass);
    sum_below(mass, allowed);
    if (allowed[2] + allowed[3] == 0) throw std::invalid_argument("mask must allow at least one class in every row");
    for (int64_t p = 2; p < 2 * K; ++p) mass[p] = allowed[p] == 0 ? -T(INF) : T(0);
    each_node(true, 0, [=](int64_t i, int64_t p) {
      const T on_left = turns[2 * i] + mass[2 * i], on_right = turns[2 * i + 1] + mass[2 * i + 1];
      const T gap = std::abs(on_left - on_right), sum = log_one_plus(exp_minus(gap)) - least_of(-on_left, -on_right);
      const T own = (on_left == -T(INF)) & (on_right == -T(INF)) ? -T(INF) : gap == gap ? sum : gap;
      turns[2 * i] = on_left - own, turns[2 * i + 1] = on_right - own, mass[p] = own;
    });
    int32_t strange = 0;
#pragma GCC ivdep
    for (int64_t i = 1; i < K; ++i) {
      const T on_left = allowed[2 * i], on_right = allowed[2 * i + 1];
      const T own_left = turns[2 * i], own_right = turns[2 * i + 1];
      const T kept_left = on_right == 0 ? 0 : own_left, kept_right = on_left == 0 ? 0 : own_right;
      turns[2 * i] = on_left == 0 ? -T(INF) : kept_left, turns[2 * i + 1] = on_right == 0 ? -T(INF) : kept_right;
      strange += kept_left != kept_left;
    }
    for (int64_t i = 1; strange && i < K; ++i) {  // live branches without mass share by the number of their classes
      const T all = allowed[2 * i] + allowed[2 * i + 1];
      if (mass[is.node_places ? is.node_places[i - 1] : i] == -T(INF) && allowed[2 * i] > 0 && allowed[2 * i] < all)
        for (int64_t p : {2 * i, 2 * i + 1}) turns[p] = std::log(allowed[p] / all);
    }
  }

  // The same for a heap of at least a vector of classes: parents at V places have their children at the next 2V. Where
  // these are a row's last, they go straight to the classes. `turns` begins with those of the place 2 * first.
  bool in_vectors() const { return !is.node_places && !is.class_places && K >= V<T>; }
  bool leaves_apart() const { return K % (2 * V<T>) == 0; }
  void descend(const T* turns, int64_t first, int64_t end, T* at, T* of_classes) const {
    int64_t p = first;
    if (first == 0) {
      Lanes<T> own = load(turns);
      own[0] = own[1] = 0;
      own += pick<Over<2>, T>(own, own);  // with their parents
      own += pick<Over<4>, T>(own, own);  // with all above: at most four levels are in a vector
      store(at, own);
      store(at + V<T>, load(turns + V<T>) + pick<Twice<V<T> / 2>, T>(own, own));
      p += V<T>;
    }
    T* const leaves = of_classes ? of_classes - K : at;
    for (turns -= 2 * first; p < end; p += V<T>) {
      const Lanes<T> own = load(at + p);
      T* to = 2 * p < K ? at : leaves;
      store(to + 2 * p, load(turns + 2 * p) + pick<Twice<0>, T>(own, own));
      store(to + 2 * p + V<T>, load(turns + 2 * p + V<T>) + pick<Twice<V<T> / 2>, T>(own, own));
    }
  }
  // Sums to the places first to end from their children's; what stands before place 2 stays.
  void ascend(int64_t first, int64_t end, T* at, const T* leaves) const {
    for (int64_t p = (end - 1) / V<T> * V<T>; p >= std::max(first, V<T>); p -= V<T>) {
      const T* from = 2 * p < K ? at : leaves;
      const Lanes<T> sums = sum_of_pairs<T>(load(from + 2 * p), load(from + 2 * p + V<T>));
      store(at + p, p + V<T> > K ? first_lanes<T>(K - p, sums, load(at + p)) : sums);
    }
    if (first > 0) return;
    Lanes<T> own = load(at);
    const T before[2] = {own[0], own[1]};
    const Lanes<T> next = load(at + V<T>);
    for (int64_t right = 1; right < V<T>; right *= 2) own = sum_of_pairs<T>(own, next);  // half of the rest each time
    own[0] = before[0], own[1] = before[1];
    store(at, own);
  }

  // The loops over rows, as many at once as fit a block; longer ones in pieces.
  void value(int64_t rows, const T* x, Mask mask, T* log_p) const {
    if (!mask.bytes && in_vectors()) return values_in_vectors(rows, x, log_p);
    const Buffer flat(2 + 2 * N * std::min(rows, is.rows_at_once)), at((mask.bytes ? 6 : 2) * K);
    for (int64_t first = 0; first < rows; first += is.rows_at_once) {
      const int64_t end = std::min(rows, first + is.rows_at_once);
      T* turns = flat.get();  // nodes count from 1
      branches(x + first * N, is.shifts, (end - first) * N, turns + 2);
      for (int64_t row = first; row < end; ++row, turns += 2 * N) {
        const uint8_t* allowed = mask.bytes ? mask.bytes + row * mask.stride : nullptr;
        value_of_row(turns, allowed, at.get(), log_p + row * K);
      }
    }
  }
  void values_in_vectors(int64_t rows, const T* x, T* log_p) const {
    const int64_t at_once = std::min(rows, is.rows_at_once), width = (2 * K + 4 * V<T> - 1) / V<T> * V<T>;
    const bool apart = leaves_apart();
    const Buffer flat(2 * std::min(N * at_once, BLOCK) + 4 * V<T>), at(apart ? width : width * at_once);
    for (int64_t row = 0; row < rows && N > BLOCK; ++row) {
      for (int64_t first = 0; first < K; first += BLOCK) {
        const int64_t from = std::max<int64_t>(first, 1), end = std::min(K, first + BLOCK), own = row * N + from - 1;
        T* turns = flat.get() + 2 * (from - first);
        branches(x + own, is.shifts + from - 1, end - from, turns);
        descend(flat.get(), first, end, at.get(), apart ? log_p + row * K : nullptr);
      }
      if (!apart) std::copy(&at[K], &at[K] + K, log_p + row * K);
    }
    for (int64_t first = 0; first < rows && N <= BLOCK; first += at_once) {
      const int64_t count = std::min(at_once, rows - first);
      branches(x + first * N, is.shifts, count * N, flat.get() + 2);
      for (int64_t row = 0; row < count; ++row) {
        T* out = log_p + (first + row) * K;
        descend(flat.get() + 2 * N * row, 0, K, apart ? at.get() : &at[row * width], apart ? out : nullptr);
      }
      for (int64_t row = 0; row < count && !apart; ++row)  // later, when all is written
        std::copy(&at[row * width + K], &at[row * width + K] + K, log_p + (first + row) * K);
    }
  }
  void value_of_row(T* turns, const uint8_t* allowed, T* at, T* out) const {
    sum_paths(turns, at, out);
    if (!allowed || renormalize(allowed, at + 2 * K, at, out)) return;
    mask_branches(allowed, turns, at + 2 * K, at + 4 * K);
    sum_paths(turns, at, out);
    for (int64_t k = 0; k < K; ++k) out[k] = allowed[k] ? out[k] : -T(INF);
  }
  void gradient(int64_t rows, const T* x, Mask mask, const T* log_p, const T* of_log_p, T* dx) const {
    const bool by_vectors = !mask.bytes && in_vectors();
    if (by_vectors && N > BLOCK && leaves_apart()) return gradient_of_long_rows(rows, x, of_log_p, dx);
    const Buffer flat(2 + 2 * N * std::min(rows, is.rows_at_once) + 4 * V<T>), own((mask.bytes ? 4 : 2) * K);
    for (int64_t first = 0; first < rows; first += is.rows_at_once) {
      const int64_t end = std::min(rows, first + is.rows_at_once);
      T* at = flat.get();  // at[2] to at[2K - 1] are a row's
      for (int64_t row = first; row < end && by_vectors; ++row, at += 2 * N)
        std::copy(of_log_p + row * K, of_log_p + row * K + K, at + K);
      at = flat.get();
      for (int64_t row = first; row < end; ++row, at += 2 * N) {
        const uint8_t* allowed = mask.bytes ? mask.bytes + row * mask.stride : nullptr;
        if (by_vectors) ascend(0, K, at, at);
        else sums_of_row(of_log_p + row * K, allowed, log_p + row * K, own.get(), at);
      }
      pull(x + first * N, is.shifts, (end - first) * N, flat.get() + 2, dx + first * N);
    }
  }
  void gradient_of_long_rows(int64_t rows, const T* x, const T* of_log_p, T* dx) const {
    const Buffer at(K + V<T>);
    for (int64_t row = 0; row < rows; ++row) {
      const T* leaves = of_log_p + row * K - K;  // at the last K places
      for (int64_t first = (K - 1) / BLOCK * BLOCK; first >= 0; first -= BLOCK) {
        const int64_t end = std::min(K, first + BLOCK), middle = std::clamp(K / 2, std::max<int64_t>(first, 1), end);
        ascend(first, end, at.get(), leaves);
        for (const auto [low, high] : {Level{std::max<int64_t>(first, 1), middle}, Level{middle, end}}) {
          const int64_t own = row * N + low - 1;
          const T* below = low < K / 2 ? at.get() : leaves;
          pull(x + own, is.shifts + low - 1, high - low, below + 2 * low, dx + own);
        }
      }
    }
  }
  void sums_of_row(const T* given, const uint8_t* allowed, const T* found, T* own, T* at) const {
    T* below = own + 2 * K;
    if (!allowed) return sum_below(given, at);
    numbers_of(allowed, below);
    for (int64_t k = 0; k < K; ++k) { const T each = given[k]; own[k] = below[k] != 0 ? each : 0; }
    const T all = T(sum(own, K));
    for (int64_t k = 0; k < K; ++k) own[k] -= exp_minus(-found[k]) * all;
    sum_below(own, at);
  }
};

}  // namespace

template <class T> void value(const Settings<T>& is, int64_t rows, const T* x, Mask mask, T* log_p) {
  Loops<T>{is}.value(rows, x, mask, log_p);
}
template <class T>
void gradient(const Settings<T>& is, int64_t rows, const T* x, Mask mask, const T* log_p,
              const T* of_log_p, T* dx) {
  Loops<T>{is}.gradient(rows, x, mask, log_p, of_log_p, dx);
}

#define FOR(T)                                                              \
  template void value(const Settings<T>&, int64_t, const T*, Mask, T*);                              \
  template void gradient(const Settings<T>&, int64_t, const T*, Mask, const T*, const T*, T*);
FOR(float)
FOR(double)
