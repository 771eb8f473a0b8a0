#include "coverage.hpp"

#include <cstdint>

namespace fuzz {
namespace {

constexpr std::uintptr_t kWays = std::uintptr_t{1} << 18;

bool taken[kWays];
bool is_new;
std::uintptr_t before;

}  // namespace

void begin_coverage() {
    is_new = false;
    before = 0;
}

bool took_new_way() { return is_new; }

}  // namespace fuzz

extern "C" void __sanitizer_cov_trace_pc() {
    const auto block = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) -
                       reinterpret_cast<std::uintptr_t>(&__sanitizer_cov_trace_pc);
    bool& way = fuzz::taken[(block ^ fuzz::before * 31) % fuzz::kWays];
    fuzz::before = block;
    if (!way) way = fuzz::is_new = true;
}
