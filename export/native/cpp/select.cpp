// Choosing a kernel when the library runs.
#include "kernel.hpp"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace sterna {
namespace {

const Kernel* const kKernels[] = {
#if defined(__x86_64__)
    &kAvx512, &kAvx2,
#elif defined(__aarch64__)
    &kNeonDot, &kNeon,
#endif
    &kPortable,
};

}  // namespace

const Kernel& find_kernel(const char* name, const char* what) {
    std::string known;
    for (const Kernel* kernel : kKernels) {
        if (!name || !*name) {
            if (kernel->supported()) return *kernel;
            continue;
        }
        if (std::strcmp(name, kernel->name) == 0) {
            if (kernel->supported()) return *kernel;
            throw std::invalid_argument(
                std::string(what) + " is " + name + ", which this processor lacks");
        }
        known += std::string(known.empty() ? "" : ", ") + kernel->name;
    }
    throw std::invalid_argument(
        std::string(what) + " must be one of " + known + ", got '" + (name ? name : "") + "'");
}

const Kernel& choose_kernel() {
    constexpr const char* kVariable = "STERNA_KERNEL";
    return find_kernel(std::getenv(kVariable), kVariable);
}

}  // namespace sterna
