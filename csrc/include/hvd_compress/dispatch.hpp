// From dtype codes, known when the program runs, to element types, known when it is compiled.
#pragma once

#include "hvd_compress/numeric.hpp"
#include "hvd_compress/types.hpp"

namespace hvd_compress {

template <class T>
struct Tag {
    using Type = T;
};

// Calls body(Tag<T>{}) with the T of `dtype`; body returns a Status.
template <class Body>
Status dispatch(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::kFloat32:
            return body(Tag<float>{});
        case DType::kFloat16:
            return body(Tag<Half>{});
        case DType::kBFloat16:
            return body(Tag<BFloat16>{});
    }
    return Status::kBadDType;
}

// Calls body(Tag<T>{}, Tag<Wide>{}) with the T of `narrow`, and Wide either fp32 or T itself; other pairs have no code.
template <class Body>
Status dispatch_pair(DType narrow, DType wide, Body&& body) {
    return dispatch(narrow, [&](auto tag) {
        if (wide == narrow) return body(tag, tag);
        if (wide == DType::kFloat32) return body(tag, Tag<float>{});
        return Status::kBadDType;
    });
}

inline Status check_numel(std::int64_t n) {
    if (n < 0) return Status::kBadSize;
    return n > kMaxNumel ? Status::kTooLarge : Status::kOk;
}

}  // namespace hvd_compress
