// What every launcher takes and returns: dtype codes, untyped arrays, workspace, stream and status.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd_compress {

// The codes are part of the interface to Python (hvd_compress/native/).
enum class DType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// Launchers never throw: they return one of these. All but the last three are found before anything is
// written.
enum class Status : int {
    kOk = 0,
    kBadDType = 1,           // a dtype, or a pair of dtypes, that the kernel has no code for
    kBadSize = 2,            // a negative size, k outside 0..n, or a number of bits that there is not
    kTooLarge = 3,           // more than kMaxNumel elements: int32 indices would not reach them
    kWorkspaceTooSmall = 4,  // less than the query function asked for, or than there is
    kIndexOutOfRange = 5,    // see `first_bad` of the launcher
    kChangedMeanwhile = 6,   // someone wrote to the input during the call; the outputs are not to be used
    kLaunchFailed = 7,       // CUDA refused to run a kernel
    kBadPayload = 8,         // what was received is no code of n elements
};

constexpr std::int64_t kMaxNumel = 2147483647;

// Contiguous and aligned to its element size; the launcher's `n` says how many elements.
struct ConstArray {
    const void* data;
    DType dtype;
};

struct Array {
    void* data;
    DType dtype;
};

// Scratch memory of the caller, aligned to 16 bytes; its contents mean nothing before and after a call, but where a
// header says that one call leaves something in it for the next.
struct Workspace {
    void* data;
    std::size_t bytes;
};

// A cudaStream_t for the CUDA twins, ignored by the CPU twins.
using Stream = void*;

}  // namespace hvd_compress
