// The tree walked on a CPU: rows of K-1 scores to log p of all K classes, and gradients back; in float32 and float64.
//
// A node is its logit z: it goes right with a = sigmoid(z) and left with 1 - a. Node i has its children at places 2i
// and 2i+1, in every tree. Flat loops over the nodes of some rows become vector code; short ones follow a row's tree.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nll_loss.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

#include <bit>

using at::Tensor;
using Optional = std::optional<Tensor>;

constexpr int64_t BLOCK = 1024;  // nodes that a flat loop takes at once: they stay in the nearest cache
constexpr int SHORT = 8, LONG = 11;  // coefficients of the natural activation's fit: of the default, and at most
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

// -- one node: z follows the natural curve in y = gain x + shift up to the joint, and then a straight line -----------

enum Kind { SIGMOID, FITTED, FITTED_LONG, NATURAL };  // the curve by a polynomial, or by the library's functions

template <class T> struct Node {
  Kind kind;
  T gain, joint, steepest;
  float fit[LONG];

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
  Node<T> node;
  std::vector<T> shifts;                            // of the nodes of as many rows as are taken at once
  std::vector<std::pair<int64_t, int64_t>> levels;  // the first and past the last node of every level
  std::vector<int64_t> node_places, class_places;
  bool in_order;                                    // class k is at place K + k
  const int64_t K = class_places.size(), N = K - 1, rows_at_once = shifts.size() / N;
  const bool heap = node_places.back() == N;        // node i is at place i

  // log(1-a) and log(a) of the nodes of whole rows, in short loops for the sake of the vector code; and, where they are
  // asked for, the roots of the odds, e^(-|z| / 2), with the sign of z: all that a gradient needs to know.
  void branches(const T* x, int64_t count, T* left, T* right, T* roots) const {
    const Node<T> node = this->node;  // a copy, which no store can change
    T z[BLOCK], e[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK, left += BLOCK, right += BLOCK) {
      const int64_t n = std::min(BLOCK, count - first);
      const T *own = x + first, *shift = shifts.data() + first;
      if (node.kind == SIGMOID) for (int64_t j = 0; j < n; ++j) z[j] = own[j] + shift[j];
      const auto y = [=, gain = node.gain](int64_t j) { return gain * own[j] + shift[j]; };
      if (node.kind == FITTED) for (int64_t j = 0; j < n; ++j) z[j] = node.template fitted<SHORT>(y(j));
      if (node.kind == FITTED_LONG) for (int64_t j = 0; j < n; ++j) z[j] = node.template fitted<LONG>(y(j));
      if (node.kind == NATURAL) for (int64_t j = 0; j < n; ++j) z[j] = node.natural(y(j));
      for (int64_t j = 0; j < n; ++j) e[j] = exp_minus(std::abs(z[j]) / 2);
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) {
        const T common = z[j] == z[j] ? log_one_plus(e[j] * e[j]) : z[j];
        left[j] = least_of(-z[j], T(0)) - common;
        right[j] = least_of(z[j], T(0)) - common;
      }
      for (int64_t j = 0; roots && j < n; ++j) roots[first + j] = z[j] == z[j] ? std::copysign(e[j], z[j]) : z[j];
    }
  }
  // The gradient in the scores from those in log p, summed below every branch: dz/dx ((1-a) right - a left).
  void pull(const T* roots, int64_t count, const T* below, T* dx) const {
    const T gain = node.gain, steepest = node.steepest;
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
    for (int64_t step = top, depth = levels.size(); step < depth; ++step) {
      const auto [low, high] = levels[upwards ? depth - 1 + top - step : step];
      if (heap) {
#pragma GCC ivdep
        for (int64_t i = low; i < high; ++i) visit(i, i);
      } else
        for (int64_t i = low; i < high; ++i) visit(i, node_places[i]);
    }
  }
  void sum_below(const T* of_classes, T* at) const {  // at every place but the root
    if (in_order) std::copy(of_classes, of_classes + K, at + K);
    else for (int64_t k = 0; k < K; ++k) at[class_places[k]] = of_classes[k];
    each_node(true, 1, [=](int64_t i, int64_t p) { at[p] = at[2 * i] + at[2 * i + 1]; });
  }
  void sum_paths(const T* left, const T* right, T* at, T* of_classes) const {
    at[1] = 0;
    each_node(false, 0, [=](int64_t i, int64_t p) { at[2 * i] = at[p] + left[i], at[2 * i + 1] = at[p] + right[i]; });
    if (in_order) std::copy(at + K, at + 2 * K, of_classes);
    else for (int64_t k = 0; k < K; ++k) of_classes[k] = at[class_places[k]];
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
    if (allowed[2] + allowed[3] == 0) throw py::value_error("mask must allow at least one class in every row");
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
      if (mass[node_places[i]] == -T(INF) && allowed[2 * i] > 0 && allowed[2 * i] < all)
        left[i] = std::log(allowed[2 * i] / all), right[i] = std::log(allowed[2 * i + 1] / all);
    }
  }
};

// -- rows of tensors; a mask is bool [K] or [..., K] -----------------------------------------------------------------

template <class T, class F> void each_chunk(const Loops<T>& loops, const Tensor& x, const Optional& mask, F visit) {
  at::parallel_for(0, x.numel() / loops.N, 1 + 8192 / loops.N, [&](int64_t row, int64_t end) {
    const int64_t rows = std::min(loops.rows_at_once, end - row);
    std::vector<T> flat(2 + 2 * loops.N * rows), places((mask ? 6 : 2) * loops.K);  // this thread's own
    for (; row < end; row += rows) visit(flat.data(), places.data(), row, std::min(end, row + rows));
  });
}
const uint8_t* row_of(const Optional& mask, int64_t row, int64_t K) {  // bytes become numbers in vector code, bools not
  if (!mask) return nullptr;
  return reinterpret_cast<const uint8_t*>(mask->const_data_ptr<bool>()) + (mask->dim() == 1 ? 0 : row * K);
}
template <class T> Tensor value(const Loops<T>& loops, const Tensor& x, const Optional& mask, bool renormalizes,
                                const Tensor& roots = {}) {
  const int64_t K = loops.K, N = loops.N;
  auto sizes = x.sizes().vec();
  sizes.back() = K;
  const Tensor log_p = at::empty(sizes, x.options());
  each_chunk(loops, x, mask, [&](T* left, T* at, int64_t row, int64_t end) {
    T *right = left + 1 + N * (end - row), *out = log_p.mutable_data_ptr<T>() + row * K;
    loops.branches(x.const_data_ptr<T>() + row * N, (end - row) * N, left + 1, right + 1,  // nodes count from 1
                   roots.defined() ? roots.mutable_data_ptr<T>() + row * N : nullptr);
    for (; row < end; ++row, left += N, right += N, out += K) {
      const uint8_t* allowed = row_of(mask, row, K);
      if (!allowed || renormalizes) loops.sum_paths(left, right, at, out);
      if (!allowed || (renormalizes && loops.renormalize(allowed, at + 2 * K, at, out))) continue;
      loops.mask_branches(allowed, renormalizes, left, right, at + 2 * K, at + 4 * K);
      loops.sum_paths(left, right, at, out);
      for (int64_t k = 0; k < K; ++k) out[k] = allowed[k] ? out[k] : -T(INF);
    }
  });
  return log_p;
}
template <class T> Tensor gradient(const Loops<T>& loops, const Tensor& roots, const Optional& mask, bool renormalizes,
                                   const Tensor& log_p, const Tensor& of_log_p) {
  const int64_t K = loops.K, N = loops.N;
  const Tensor dx = at::empty_like(roots);
  each_chunk(loops, roots, mask, [&](T* flat, T* own, int64_t first, int64_t end) {
    T *at = flat, *below = own + 2 * K;  // at[2] to at[2K - 1] are a row's
    for (int64_t row = first; row < end; ++row, at += 2 * N) {
      const T* given = of_log_p.const_data_ptr<T>() + row * K;
      const T* found = log_p.defined() ? log_p.const_data_ptr<T>() + row * K : nullptr;  // only renormalising needs it
      const uint8_t* allowed = row_of(mask, row, K);
      if (allowed) {
        loops.numbers_of(allowed, below);
        for (int64_t k = 0; k < K; ++k) { const T each = given[k]; own[k] = below[k] != 0 ? each : 0; }
      }
      if (allowed && renormalizes) {
        const T all = T(sum(own, K));
        for (int64_t k = 0; k < K; ++k) own[k] -= exp_minus(-found[k]) * all;
      }
      loops.sum_below(allowed ? own : given, at);
      if (!allowed || renormalizes) continue;
      loops.numbers_of(allowed, own);
      loops.sum_below(own, below);
#pragma GCC ivdep
      for (int64_t i = 1; i < K; ++i) {  // a node with a dead branch has no say
        const bool whole = (below[2 * i] != 0) & (below[2 * i + 1] != 0);
        at[2 * i] = whole ? at[2 * i] : 0, at[2 * i + 1] = whole ? at[2 * i + 1] : 0;
      }
    }
    loops.pull(roots.const_data_ptr<T>() + first * N, (end - first) * N, flat + 2, dx.mutable_data_ptr<T>() + first * N);
  });
  return dx;
}

// -- PyTorch's gradients, and Python ---------------------------------------------------------------------------------

template <class T> struct Walk : torch::CustomClassHolder {
  Loops<T> loops;
  py::object plain;  // the gradient in plain, differentiable tensor code
  Walk(int kind, std::vector<T> numbers, const std::vector<float>& fit, std::vector<T> shifts,
       decltype(Loops<T>::levels) levels, std::vector<int64_t> node_places, std::vector<int64_t> class_places,
       bool in_order, py::object plain)
      : loops{{Kind(kind), numbers[0], numbers[1], numbers[2]}, shifts, levels, node_places, class_places, in_order},
        plain(std::move(plain)) { std::copy(fit.begin(), fit.end(), loops.node.fit); }
  ~Walk() override { py::gil_scoped_acquire gil; plain = py::object(); }  // a graph may hold it and die in any thread
};
template <class T> using WalkPointer = c10::intrusive_ptr<Walk<T>>;

// Whether a tensor is nothing but numbers in memory, which no transform, mode or forward derivative watches.
bool is_plain(const Tensor& t) {
  const auto rest = t.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView - c10::autocast_dispatch_keyset;
  return rest == c10::DispatchKeySet(c10::DispatchKey::CPU) && !t._fw_grad(0).defined();
}
template <class T> struct LogP : torch::autograd::Function<LogP<T>> {
  using Context = torch::autograd::AutogradContext;
  static Tensor forward(Context* ctx, const Tensor& x, const Optional& mask, WalkPointer<T> walk, bool renormalizes) {
    const Tensor roots = at::empty_like(x), log_p = value(walk->loops, x, mask, renormalizes, roots);
    ctx->save_for_backward({x, mask.value_or(Tensor()), mask && renormalizes ? log_p : Tensor(), roots});
    ctx->saved_data["walk"] = c10::IValue::make_capsule(walk);
    return log_p;
  }
  static std::vector<Tensor> backward(Context* ctx, std::vector<Tensor> gradients) {
    auto saved = ctx->get_saved_variables();
    for (Tensor& each : saved) if (each.defined()) each = each.contiguous();  // a hook may have moved it
    const auto walk = c10::static_intrusive_pointer_cast<Walk<T>>(ctx->saved_data["walk"].toCapsule());
    const Optional mask = saved[1].defined() ? Optional(saved[1]) : std::nullopt;
    const bool renormalizes = saved[2].defined();  // where there is a mask
    const Tensor& given = gradients[0];
    if (at::GradMode::is_enabled() || !is_plain(given)) {  // it is to be differentiated, or stands for many
      py::gil_scoped_acquire gil;
      return {walk->plain(saved[0], mask, renormalizes, given).template cast<Tensor>(), Tensor(), Tensor(), Tensor()};
    }
    const Tensor dx = gradient(walk->loops, saved[3], mask, renormalizes, saved[2], given.contiguous());
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};
template <class T> Tensor log_p(WalkPointer<T> walk, const Tensor& scores, const Optional& mask, bool renormalizes) {
  const Tensor x = (scores.is_neg() ? scores.resolve_neg() : scores).contiguous();
  const Optional allowed = mask ? Optional(mask->contiguous()) : mask;
  const bool tracks = at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() && x.requires_grad();
  return tracks ? LogP<T>::apply(x, allowed, walk, renormalizes) : value(walk->loops, x, allowed, renormalizes);
}
template <class T> Tensor cross_entropy(WalkPointer<T> walk, const Tensor& x, const Tensor& target,
                                        const Optional& weight, int64_t reduction, int64_t ignored) {
  const Tensor found = log_p<T>(walk, x, {}, true);
  return at::nll_loss(found.flatten(0, -2), target.flatten(), weight, reduction, ignored);
}
template <class T> void bind(py::module& module, const char* name) {
  using Levels = decltype(Loops<T>::levels);
  using Places = std::vector<int64_t>;
  const py::call_guard<py::gil_scoped_release> free;  // other threads may run meanwhile
  py::class_<Walk<T>, WalkPointer<T>>(module, name)
      .def(py::init<int, std::vector<T>, std::vector<float>, std::vector<T>, Levels, Places, Places, bool, py::object>())
      .def("log_p", &log_p<T>, free)
      .def("cross_entropy", &cross_entropy<T>, free);
}

PYBIND11_MODULE(_walk, module) {
  bind<float>(module, "Float32");
  bind<double>(module, "Float64");
}
