#include "loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <vector>

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
float exp_minus(float w) {  // exp(-w) for w >= 0; 0 from 88 on, and for NaN, which must come out elsewhere
  w = least_of(w, 88.0f);
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
  // log(1-a) and log(a) of the nodes of whole rows, in short loops for the sake of the vector code; and, where they are
  // asked for, the roots of the odds, e^(-|z| / 2), with the sign of z: all that a gradient needs to know.
  void branches(const T* x, int64_t count, T* left, T* right, T* roots) const {
    const Node<T> node(is);  // a copy, which no store can change
    T z[BLOCK], e[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK, left += BLOCK, right += BLOCK) {
      const int64_t n = std::min(BLOCK, count - first);
      logits(node, x + first, is.shifts + first, n, z);
      for (int64_t j = 0; j < n; ++j) e[j] = exp_minus(std::abs(z[j]) / 2);
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) {
        const T common = z[j] == z[j] ? log_one_plus(e[j] * e[j]) : z[j];
        left[j] = least_of(-z[j], T(0)) - common;
        right[j] = least_of(z[j], T(0)) - common;
      }
      if (roots) roots_of(z, e, n, roots + first);
    }
  }
  void roots_of(const T* z, const T* e, int64_t n, T* roots) const {
    for (int64_t j = 0; j < n; ++j) roots[j] = z[j] == z[j] ? std::copysign(e[j], z[j]) : z[j];
  }
  // The gradient in the scores of whole rows, where their roots were not kept.
  void pull_scores(const T* x, int64_t count, const T* below, T* dx) const {
    const Node<T> node(is);
    T z[BLOCK], e[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
      const int64_t n = std::min(BLOCK, count - first);
      logits(node, x + first, is.shifts + first, n, z);
      for (int64_t j = 0; j < n; ++j) e[j] = exp_minus(std::abs(z[j]) / 2);
      roots_of(z, e, n, e);
      pull(e, n, below + 2 * first, dx + first);
    }
  }
  // The gradient in the scores from those in log p, summed below every branch: dz/dx ((1-a) right - a left).
  void pull(const T* roots, int64_t count, const T* below, T* dx) const {
    const T gain = is.gain, steepest = is.steepest;
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
      const T root = std::abs(roots[j]), odds = root * root;
      const T slope = gain * least_of(T(0.5) / root, steepest / (1 + odds));  // dz/dx / (1 + odds)
      const bool is_left = std::signbit(roots[j]);
      dx[j] = slope * ((is_left ? 1 : odds) * below[2 * j + 1] - (is_left ? odds : 1) * below[2 * j]);
    }
  }

  // Along one row's tree: left[i] and right[i] belong to node i, at[p] to place p.
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
  void sum_paths(const T* left, const T* right, T* at, T* of_classes) const {
    at[1] = 0;
    each_node(false, 0, [=](int64_t i, int64_t p) { at[2 * i] = at[p] + left[i], at[2 * i + 1] = at[p] + right[i]; });
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
      const T own = log_p[k], mass = exp_minus(-own);
      p[k] = allowed[k] * (own == own ? mass : own);
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
  // Makes the branches those of the masked tree. Pruned, it never takes a dead one. Renormalised, each also counts
  // times the mass of the allowed classes below it, divided by the mass below its node.
  void mask_branches(const uint8_t* mask, bool renormalizes, T* left, T* right, T* allowed, T* mass) const {
    numbers_of(mask, mass);
    sum_below(mass, allowed);
    if (allowed[2] + allowed[3] == 0) throw std::invalid_argument("mask must allow at least one class in every row");
    for (int64_t p = 2; p < 2 * K; ++p) mass[p] = allowed[p] == 0 ? -T(INF) : T(0);
    if (renormalizes) each_node(true, 0, [=](int64_t i, int64_t p) {
      const T on_left = left[i] + mass[2 * i], on_right = right[i] + mass[2 * i + 1];
      const T gap = std::abs(on_left - on_right), sum = log_one_plus(exp_minus(gap)) - least_of(-on_left, -on_right);
      const T own = (on_left == -T(INF)) & (on_right == -T(INF)) ? -T(INF) : gap == gap ? sum : gap;
      left[i] = on_left - own, right[i] = on_right - own, mass[p] = own;
    });
    int32_t strange = 0;
#pragma GCC ivdep
    for (int64_t i = 1; i < K; ++i) {
      const T on_left = allowed[2 * i], on_right = allowed[2 * i + 1], own_left = left[i], own_right = right[i];
      const T kept_left = on_right == 0 ? 0 : own_left, kept_right = on_left == 0 ? 0 : own_right;
      left[i] = on_left == 0 ? -T(INF) : kept_left, right[i] = on_right == 0 ? -T(INF) : kept_right;
      strange += kept_left != kept_left;
    }
    for (int64_t i = 1; strange && i < K; ++i) {  // live branches without mass share by the number of their classes
      const T all = allowed[2 * i] + allowed[2 * i + 1];
      if (mass[is.node_places ? is.node_places[i - 1] : i] == -T(INF) && allowed[2 * i] > 0 && allowed[2 * i] < all)
        left[i] = std::log(allowed[2 * i] / all), right[i] = std::log(allowed[2 * i + 1] / all);
    }
  }

  // The loops over rows, as many at once as fit a block.
  void value(int64_t rows, const T* x, Mask mask, T* roots, T* log_p) const {
    std::vector<T> flat(2 + 2 * N * std::min(rows, is.rows_at_once)), at((mask.bytes ? 6 : 2) * K);
    for (int64_t first = 0; first < rows; first += is.rows_at_once) {
      const int64_t end = std::min(rows, first + is.rows_at_once);
      T *left = flat.data(), *right = left + 1 + N * (end - first);
      branches(x + first * N, (end - first) * N, left + 1, right + 1, roots ? roots + first * N : nullptr);
      for (int64_t row = first; row < end; ++row, left += N, right += N) {  // nodes count from 1
        const uint8_t* allowed = mask.bytes ? mask.bytes + row * mask.stride : nullptr;
        value_of_row(left, right, allowed, mask.renormalizes, at.data(), log_p + row * K);
      }
    }
  }
  void value_of_row(T* left, T* right, const uint8_t* allowed, bool renormalizes, T* at, T* out) const {
    if (!allowed || renormalizes) sum_paths(left, right, at, out);
    if (!allowed || (renormalizes && renormalize(allowed, at + 2 * K, at, out))) return;
    mask_branches(allowed, renormalizes, left, right, at + 2 * K, at + 4 * K);
    sum_paths(left, right, at, out);
    for (int64_t k = 0; k < K; ++k) out[k] = allowed[k] ? out[k] : -T(INF);
  }
  void gradient(int64_t rows, const T* from, bool are_roots, Mask mask, const T* log_p, const T* of_log_p, T* dx) const {
    std::vector<T> flat(2 + 2 * N * std::min(rows, is.rows_at_once)), own((mask.bytes ? 6 : 2) * K);
    for (int64_t first = 0; first < rows; first += is.rows_at_once) {
      const int64_t end = std::min(rows, first + is.rows_at_once);
      T* at = flat.data();  // at[2] to at[2K - 1] are a row's
      for (int64_t row = first; row < end; ++row, at += 2 * N) {
        const uint8_t* allowed = mask.bytes ? mask.bytes + row * mask.stride : nullptr;
        const T* found = allowed && mask.renormalizes ? log_p + row * K : nullptr;
        sums_of_row(of_log_p + row * K, allowed, found, own.data(), at);
      }
      const T *own_rows = from + first * N, *below = flat.data() + 2;
      if (are_roots) pull(own_rows, (end - first) * N, below, dx + first * N);
      else pull_scores(own_rows, (end - first) * N, below, dx + first * N);
    }
  }
  void sums_of_row(const T* given, const uint8_t* allowed, const T* found, T* own, T* at) const {
    T* below = own + 2 * K;
    if (!allowed) return sum_below(given, at);
    numbers_of(allowed, below);
    for (int64_t k = 0; k < K; ++k) { const T each = given[k]; own[k] = below[k] != 0 ? each : 0; }
    if (found) {
      const T all = T(sum(own, K));
      for (int64_t k = 0; k < K; ++k) own[k] -= exp_minus(-found[k]) * all;
    }
    sum_below(own, at);
    if (found) return;
    numbers_of(allowed, own);
    sum_below(own, below);
#pragma GCC ivdep
    for (int64_t i = 1; i < K; ++i) {  // a node with a dead branch has no say
      const bool whole = (below[2 * i] != 0) & (below[2 * i + 1] != 0);
      at[2 * i] = whole ? at[2 * i] : 0, at[2 * i + 1] = whole ? at[2 * i + 1] : 0;
    }
  }
};

}  // namespace

template <class T> void value(const Settings<T>& is, int64_t rows, const T* x, Mask mask, T* roots, T* log_p) {
  Loops<T>{is}.value(rows, x, mask, roots, log_p);
}
template <class T>
void gradient(const Settings<T>& is, int64_t rows, const T* from, bool are_roots, Mask mask, const T* log_p,
              const T* of_log_p, T* dx) {
  Loops<T>{is}.gradient(rows, from, are_roots, mask, log_p, of_log_p, dx);
}

#define FOR(T)                                                              \
  template void value(const Settings<T>&, int64_t, const T*, Mask, T*, T*); \
  template void gradient(const Settings<T>&, int64_t, const T*, bool, Mask, const T*, const T*, T*);
FOR(float)
FOR(double)
