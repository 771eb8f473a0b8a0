// The socket on which a lab takes orders.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "system.hpp"

namespace hvd_compress::netlab {

// Each client sends one order, in one message, and gets one answer. Never waits for a client.
class Control {
  public:
    explicit Control(const std::string& path);

    // Everything that may become readable.
    std::vector<int> files() const;
    // Answers what has come in.
    void serve(const std::function<std::string(const std::string&)>& answer);

  private:
    File listener_;
    std::vector<File> clients_;
};

}  // namespace hvd_compress::netlab
