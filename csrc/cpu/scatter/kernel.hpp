#pragma once

#include "hvd_compress/numeric.hpp"

namespace hvd_compress::cpu {

// Indices were checked. But another thread may write to them meanwhile: so each is read once, and compared again before
// it is used. The loops return whether all were still good.
class Indices {
  public:
    Indices(const std::int32_t* indices, std::int64_t n) : indices_(indices), n_(static_cast<std::uint32_t>(n)) {}

    // Calls body(j, index) for j in 0..count-1.
    template <class Body>
    bool each(std::int64_t count, const Body& body) const {
        for (std::int64_t j = 0; j < count; ++j) {
            const auto index = static_cast<std::uint32_t>(indices_[j]);
            if (__builtin_expect(index >= n_, 0)) return false;
            body(j, index);
        }
        return true;
    }

  private:
    const volatile std::int32_t* indices_;
    std::uint32_t n_;
};

template <class T>
bool gather_kernel(const T* x, const Indices& indices, std::int64_t count, T* values) {
    return indices.each(count, [=](std::int64_t j, std::uint32_t index) { values[j] = x[index]; });
}

template <class T>
bool take_kernel(T* x, const Indices& indices, std::int64_t count, float* values) {
    return indices.each(count, [=](std::int64_t j, std::uint32_t index) {
        values[j] = to_float(x[index]);
        x[index] = T{};
    });
}

template <class V, class T>
bool scatter_add_kernel(const Indices& indices, const V* values, std::int64_t count, T* out, float scale) {
    return indices.each(count, [=](std::int64_t j, std::uint32_t index) {
        out[index] = from_float<T>(to_float(out[index]) + scale * to_float(values[j]));
    });
}

template <class V, class T>
bool scatter_set_kernel(const Indices& indices, const V* values, std::int64_t count, T* out, float scale) {
    return indices.each(
        count, [=](std::int64_t j, std::uint32_t index) { out[index] = from_float<T>(scale * to_float(values[j])); });
}

}  // namespace hvd_compress::cpu
