// The walk of loops.h as calls from XLA's programs.

#include "loops.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Rows from `first` on, as many as a thread takes. Whoever comes late finds nothing left to do, so nobody waits for a
// thread that is busy elsewhere.
template <class F> void each_part(ffi::ThreadPool& pool, int64_t rows, int64_t N, F visit) {
  const int64_t threads = std::max<int64_t>(pool.num_threads(), 1);
  const int64_t share = std::max(1 + 8192 / N, (rows + threads - 1) / threads), parts = (rows + share - 1) / share;
  if (parts <= 1) return visit(0, rows);
  struct Shared {
    std::latch done;
    std::atomic<int64_t> next = 0;
    explicit Shared(int64_t parts) : done(parts) {}
  };
  const auto shared = std::make_shared<Shared>(parts);
  const std::function<void()> work = [=, visit = &visit] {
    for (int64_t part; (part = shared->next++) < parts; shared->done.count_down())
      (*visit)(part * share, std::min(share, rows - part * share));
  };
  for (int64_t part = 1; part < parts; ++part) pool.Schedule(std::function(work));
  work();
  shared->done.wait();
}
struct Constants {
  int64_t kind;
  ffi::Span<const double> numbers;  // gain, joint, steepest
  ffi::Span<const float> fit;
  ffi::Span<const int64_t> levels;
};
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(Constants, ffi::StructMember<int64_t>("kind"),
                                      ffi::StructMember<ffi::Span<const double>>("numbers"),
                                      ffi::StructMember<ffi::Span<const float>>("fit"),
                                      ffi::StructMember<ffi::Span<const int64_t>>("levels"));
template <ffi::DataType D> using Numbers = ffi::Buffer<D>;
using Places = ffi::Buffer<ffi::S32>;

template <ffi::DataType D, class T = ffi::NativeType<D>>
Settings<T> settings_of(int64_t K, Numbers<D> shifts, Places nodes, Places classes, Constants c) {
  const auto or_null = [](Places table) { return table.element_count() ? table.typed_data() : nullptr; };
  return {K, Kind(c.kind), T(c.numbers[0]), T(c.numbers[1]), T(c.numbers[2]), c.fit.begin(), shifts.typed_data(),
          int64_t(shifts.element_count()), reinterpret_cast<const Level*>(c.levels.begin()), int64_t(c.levels.size() / 2),
          or_null(nodes), or_null(classes)};
}
template <ffi::DataType D>
ffi::Error value_call(ffi::ThreadPool pool, Numbers<D> x, Numbers<D> shifts, Places nodes, Places classes,
                      ffi::Result<Numbers<D>> log_p, Constants constants) {
  const auto is = settings_of<D>(log_p->dimensions().back(), shifts, nodes, classes, constants);
  const auto* from = x.typed_data();
  auto* to = log_p->typed_data();
  each_part(pool, x.element_count() / is.N, is.N, [&](int64_t first, int64_t rows) {
    value(is, rows, from + first * is.N, {nullptr, 0}, to + first * is.K);
  });
  return ffi::Error::Success();
}
template <ffi::DataType D>
ffi::Error gradient_call(ffi::ThreadPool pool, Numbers<D> x, Numbers<D> of_log_p, Numbers<D> shifts, Places nodes,
                         Places classes, ffi::Result<Numbers<D>> dx, Constants constants) {
  const auto is = settings_of<D>(of_log_p.dimensions().back(), shifts, nodes, classes, constants);
  const auto *from = x.typed_data(), *given = of_log_p.typed_data();
  auto* to = dx->typed_data();
  each_part(pool, x.element_count() / is.N, is.N, [&](int64_t first, int64_t rows) {
    gradient<ffi::NativeType<D>>(is, rows, from + first * is.N, {nullptr, 0}, nullptr,
                                 given + first * is.K, to + first * is.N);
  });
  return ffi::Error::Success();
}

#pragma GCC visibility push(default)
#define ROWS(D) ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Numbers<D>>()
#define REST(D) .Arg<Numbers<D>>().Arg<Places>().Arg<Places>().Ret<Numbers<D>>().Attrs<Constants>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(catnat_value_float32, value_call<ffi::F32>, ROWS(ffi::F32) REST(ffi::F32));
XLA_FFI_DEFINE_HANDLER_SYMBOL(catnat_value_float64, value_call<ffi::F64>, ROWS(ffi::F64) REST(ffi::F64));
XLA_FFI_DEFINE_HANDLER_SYMBOL(catnat_gradient_float32, gradient_call<ffi::F32>,
                              ROWS(ffi::F32).Arg<Numbers<ffi::F32>>() REST(ffi::F32));
XLA_FFI_DEFINE_HANDLER_SYMBOL(catnat_gradient_float64, gradient_call<ffi::F64>,
                              ROWS(ffi::F64).Arg<Numbers<ffi::F64>>() REST(ffi::F64));
