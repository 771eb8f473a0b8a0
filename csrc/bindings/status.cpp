#include <stdexcept>
#include <string>

#include "bindings.hpp"

namespace hvd_compress::bindings {
namespace {

const char* describe(Status status) {
    switch (status) {
        case Status::kOk:
            return "ok";
        case Status::kBadDType:
            return "no code for this dtype or pair of dtypes";
        case Status::kBadSize:
            return "a size is negative, or k lies outside 0..n";
        case Status::kTooLarge:
            return "more than 2^31 - 1 elements";
        case Status::kWorkspaceTooSmall:
            return "the workspace is smaller than was asked for";
        case Status::kIndexOutOfRange:
            return "an index lies outside 0..n-1";
        case Status::kChangedMeanwhile:
            return "the input was written to during the call";
        case Status::kLaunchFailed:
            return "CUDA refused to run a kernel";
        case Status::kBadPayload:
            return "what was received is no code of its elements";
    }
    return "unknown status";
}

}  // namespace

void check(Status status) {
    if (status == Status::kOk) return;
    throw std::runtime_error("status " + std::to_string(static_cast<int>(status)) + ": " + describe(status));
}

std::int64_t check_indices(Status status, std::int64_t first_bad) {
    if (status != Status::kIndexOutOfRange) check(status);
    return first_bad;
}

}  // namespace hvd_compress::bindings
