// Addresses, sizes and dtype codes in, plain results out; hvd_compress/native/ has checked what they mean.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include "hvd_compress/types.hpp"

namespace hvd_compress::bindings {

using Address = std::uintptr_t;

// Gives the GIL to other threads. A daemon thread that wants it back while the interpreter ends is ended by Python
// before 3.14, by an unwinding of its stack that nothing may catch; that of pybind11::gil_scoped_release ends the whole
// process with SIGABRT. Here it stops and sleeps until the process ends, as all threads do from Python 3.14 on.
class ReleasedGil {
  public:
    ReleasedGil() : state_(PyEval_SaveThread()) {}
    ReleasedGil(const ReleasedGil&) = delete;
    ReleasedGil& operator=(const ReleasedGil&) = delete;
    ~ReleasedGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) ::pause();
        }
    }

  private:
    PyThreadState* state_;
};

// No binding touches Python while its kernel runs, so other threads may.
using WithoutGil = pybind11::call_guard<ReleasedGil>;

template <class T>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

inline ConstArray const_array(Address address, int dtype) {
    return {pointer<const void>(address), static_cast<DType>(dtype)};
}

inline Array array(Address address, int dtype) { return {pointer<void>(address), static_cast<DType>(dtype)}; }

// Throws std::runtime_error that names the status, unless it is kOk.
void check(Status status);

// The same for launchers that look at indices: returns the position of the first bad one, or -1.
std::int64_t check_indices(Status status, std::int64_t first_bad);

void bind_control(pybind11::module_& module);
void bind_feedback(pybind11::module_& module);
void bind_scale(pybind11::module_& module);
void bind_topk(pybind11::module_& module);
void bind_sign(pybind11::module_& module);
void bind_scatter(pybind11::module_& module);
void bind_threshold(pybind11::module_& module);
void bind_curve(pybind11::module_& module);
void bind_quantize(pybind11::module_& module);
void bind_blocks(pybind11::module_& module);
void bind_mstopk(pybind11::module_& module);
void bind_coded(pybind11::module_& module);
void bind_elias_fano(pybind11::module_& module);
void bind_planner(pybind11::module_& module);
void bind_embedding(pybind11::module_& module);
void bind_attention(pybind11::module_& module);
void bind_links(pybind11::module_& module);

}  // namespace hvd_compress::bindings
