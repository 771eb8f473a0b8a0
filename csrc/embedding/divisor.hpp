// Division by one number, again and again, by a multiplication.
#pragma once

#include <cstdint>

namespace hvd_compress::embedding {

// Exact for 0 <= value < 2^47 and 1 <= divisor < 2^16: the reciprocal is too large by less than 2^-64, and so the
// quotient by less than 2^-17, which is less than what the largest fraction, 1 - 1 / divisor, lacks to 1.
class Divisor {
  public:
    explicit Divisor(std::int64_t divisor)
        : divisor_(divisor), reciprocal_(~std::uint64_t{0} / static_cast<std::uint64_t>(divisor) + 1) {}

    std::int64_t quotient(std::int64_t value) const {
        if (divisor_ == 1) return value;  // whose reciprocal, 2^64, is none
        return static_cast<std::int64_t>(
            static_cast<unsigned __int128>(static_cast<std::uint64_t>(value)) * reciprocal_ >> 64);
    }
    std::int64_t remainder(std::int64_t value) const { return value - quotient(value) * divisor_; }

  private:
    std::int64_t divisor_;
    std::uint64_t reciprocal_;
};

}  // namespace hvd_compress::embedding
