// Kernels with a defect each, and one without: the name of the defect is the argument, and what the fibers find is
// printed.
#include <cstdio>
#include <string>

#include "../../../../csrc/cuda/launch.hpp"

namespace {

using namespace hvd_compress;

enum class Defect { kNone, kMissingBarrier, kPlainAdd, kOtherBlock, kDivergence, kMisaligned, kRegister, kHost };

// Each thread passes its number to its neighbour, and all add up what they got.
struct Pass {
    static constexpr int kThreads = 64;
    struct Shared {
        std::uint32_t number[kThreads];
    };
    Defect defect;
    std::uint32_t *sum, *out;
    const std::uint32_t* hosts;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<std::uint32_t> own;
        block.each([&](int t) {
            own[t] = static_cast<std::uint32_t>(t);
            shared.number[t] = own[t];
        });
        if (defect != Defect::kMissingBarrier) block.sync();
        block.each([&](int t) {
            const std::uint32_t neighbour = shared.number[(t + 1) % kThreads];
            out[block.index * kThreads + t] = neighbour + own[t];
            if (defect == Defect::kPlainAdd) {
                *sum += neighbour;
            } else {
                cuda::atomic_add(sum, neighbour);
            }
            if (defect == Defect::kOtherBlock && block.index == 1 && t == 0) out[0] = 1;
            if (defect == Defect::kMisaligned) *reinterpret_cast<cuda::Count*>(out + block.index * kThreads + 1) = 0;
            if (defect == Defect::kHost) out[block.index * kThreads + t] += *hosts;
            if (defect == Defect::kDivergence && t == 0) block.sync();
        });
        block.sync();
    }
};

// Thread 1 reads where thread 0 has its registers.
struct Peek {
    static constexpr int kThreads = 32;
    struct Shared {
        const std::uint32_t* where;
    };
    std::uint32_t* out;

    template <class B>
    HVD_COMPRESS_TILE void operator()(const B& block, Shared& shared) const {
        typename B::template Each<std::uint32_t> own;
        block.each([&](int t) {
            own[t] = 7;
            if (t == 0) shared.where = &own[t];
        });
        block.sync();
        block.each([&](int t) {
            if (t == 1) *out = *shared.where;
        });
        block.sync();
    }
};

constexpr const char* kNames[] = {"none",       "missing-barrier", "plain-add",      "other-block",
                                  "divergence", "misaligned",      "another-thread", "hosts-memory"};

}  // namespace

int main(int, char** words) {
    int defect = 0;
    while (words[1] != std::string(kNames[defect])) ++defect;
    const auto sum = static_cast<std::uint32_t*>(fibers::allocate(4));
    const auto out = static_cast<std::uint32_t*>(fibers::allocate(4 * 2 * Pass::kThreads));
    auto* const hosts = new std::uint32_t{1};
    *sum = 0;
    if (static_cast<Defect>(defect) == Defect::kRegister) {
        cuda::launch(Peek{out}, 1, nullptr);
    } else {
        cuda::launch(Pass{static_cast<Defect>(defect), sum, out, hosts}, 2, nullptr);
    }
    const bool right = *sum == Pass::kThreads * (Pass::kThreads - 1);
    std::printf("the sum is %s\n", right ? "right" : "wrong");
    return fibers::player::totals().findings == 0 ? 0 : 66;
}
