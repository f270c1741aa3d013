// The walk of loops.h as functions of tensors, with PyTorch's gradients, for Python.

#include "loops.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/nll_loss.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

using at::Tensor;
using Optional = std::optional<Tensor>;

// -- rows of tensors; a mask is bool [K] or [..., K] -----------------------------------------------------------------

// Rows from `first` on, as many as a thread takes.
template <class T, class F> void each_part(const Settings<T>& is, const Tensor& x, F visit) {
  at::parallel_for(0, x.numel() / is.N, 1 + 8192 / is.N, [&](int64_t first, int64_t end) { visit(first, end - first); });
}
Mask rows_of(const Optional& mask, int64_t first, int64_t K) {
  if (!mask) return {nullptr, 0};
  const int64_t stride = mask->dim() == 1 ? 0 : K;
  return {reinterpret_cast<const uint8_t*>(mask->const_data_ptr<bool>()) + first * stride, stride};
}
template <class T> Tensor value(const Settings<T>& is, const Tensor& x, const Optional& mask) {
  auto sizes = x.sizes().vec();
  sizes.back() = is.K;
  const Tensor log_p = at::empty(sizes, x.options());
  const T* from = x.const_data_ptr<T>();
  T* to = log_p.mutable_data_ptr<T>();
  each_part(is, x, [&](int64_t first, int64_t rows) {
    value(is, rows, from + first * is.N, rows_of(mask, first, is.K), to + first * is.K);
  });
  return log_p;
}
template <class T> Tensor gradient(const Settings<T>& is, const Tensor& x, const Optional& mask, const Tensor& log_p,
                                   const Tensor& of_log_p) {
  const Tensor dx = at::empty_like(x);
  const T *from = x.const_data_ptr<T>(), *given = of_log_p.const_data_ptr<T>();
  const T* found = log_p.defined() ? log_p.const_data_ptr<T>() : nullptr;
  T* to = dx.mutable_data_ptr<T>();
  each_part(is, x, [&](int64_t first, int64_t rows) {
    gradient(is, rows, from + first * is.N, rows_of(mask, first, is.K),
             found ? found + first * is.K : nullptr, given + first * is.K, to + first * is.N);
  });
  return dx;
}

// -- PyTorch's gradients, and Python ---------------------------------------------------------------------------------

template <class T> struct Walk : torch::CustomClassHolder {
  std::vector<float> fit;
  std::vector<T> shifts;
  std::vector<int64_t> levels;
  std::vector<int32_t> node_places, class_places;
  Settings<T> settings;
  py::object plain;  // the gradient in plain, differentiable tensor code
  Walk(int64_t K, int kind, std::vector<T> numbers, std::vector<float> fit, std::vector<T> shifts,
       std::vector<int64_t> levels, std::vector<int32_t> node_places, std::vector<int32_t> class_places, py::object plain)
      : fit(std::move(fit)), shifts(std::move(shifts)), levels(std::move(levels)), node_places(std::move(node_places)),
        class_places(std::move(class_places)),
        settings{K, Kind(kind), numbers[0], numbers[1], numbers[2], this->fit.data(), this->shifts.data(),
                 int64_t(this->shifts.size()), reinterpret_cast<const Level*>(this->levels.data()),
                 int64_t(this->levels.size() / 2), or_null(this->node_places), or_null(this->class_places)},
        plain(std::move(plain)) {}
  static const int32_t* or_null(const std::vector<int32_t>& table) { return table.empty() ? nullptr : table.data(); }
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
  static Tensor forward(Context* ctx, const Tensor& x, const Optional& mask, WalkPointer<T> walk) {
    const Tensor log_p = value(walk->settings, x, mask);
    ctx->save_for_backward({x, mask.value_or(Tensor()), mask ? log_p : Tensor()});
    ctx->saved_data["walk"] = c10::IValue::make_capsule(walk);
    return log_p;
  }
  static std::vector<Tensor> backward(Context* ctx, std::vector<Tensor> gradients) {
    auto saved = ctx->get_saved_variables();
    for (Tensor& each : saved) if (each.defined()) each = each.contiguous();  // a hook may have moved it
    const auto walk = c10::static_intrusive_pointer_cast<Walk<T>>(ctx->saved_data["walk"].toCapsule());
    const Optional mask = saved[1].defined() ? Optional(saved[1]) : std::nullopt;
    const Tensor& given = gradients[0];
    if (at::GradMode::is_enabled() || !is_plain(given)) {  // it is to be differentiated, or stands for many
      py::gil_scoped_acquire gil;
      return {walk->plain(saved[0], mask, given).template cast<Tensor>(), Tensor(), Tensor()};
    }
    const Tensor dx = gradient(walk->settings, saved[0], mask, saved[2], given.contiguous());
    return {dx, Tensor(), Tensor()};
  }
};
template <class T> Tensor log_p(WalkPointer<T> walk, const Tensor& scores, const Optional& mask) {
  const Tensor x = (scores.is_neg() ? scores.resolve_neg() : scores).contiguous();
  const Optional allowed = mask ? Optional(mask->contiguous()) : mask;
  const bool tracks = at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() && x.requires_grad();
  return tracks ? LogP<T>::apply(x, allowed, walk) : value(walk->settings, x, allowed);
}
template <class T> Tensor gradient_of(WalkPointer<T> walk, const Tensor& x, const Optional& mask, const Optional& log_p,
                                      const Tensor& given) {
  return gradient(walk->settings, x, mask, log_p.value_or(Tensor()), given);
}
template <class T> Tensor cross_entropy(WalkPointer<T> walk, const Tensor& x, const Tensor& target,
                                        const Optional& weight, int64_t reduction, int64_t ignored) {
  const Tensor found = log_p<T>(walk, x, {});
  return at::nll_loss(found.flatten(0, -2), target.flatten(), weight, reduction, ignored);
}
template <class T> void bind(py::module& module, const char* name) {
  using Places = std::vector<int32_t>;
  const py::call_guard<py::gil_scoped_release> free;  // other threads may run meanwhile
  py::class_<Walk<T>, WalkPointer<T>>(module, name)
      .def(py::init<int64_t, int, std::vector<T>, std::vector<float>, std::vector<T>, std::vector<int64_t>, Places,
                    Places, py::object>())
      .def("log_p", &log_p<T>, free)
      .def("gradient", &gradient_of<T>, free)
      .def("cross_entropy", &cross_entropy<T>, free);
}

PYBIND11_MODULE(_walk, module) {
  bind<float>(module, "Float32");
  bind<double>(module, "Float64");
}
