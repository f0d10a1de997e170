// The operator sterna::Records for onnxruntime: a whole model, from tokens to logits.
//
// Inputs: tokens int64 [batch, length]; state int32 [states, batch, width]; logits_from int64 [1],
// which may be missing; then initialisers: the program, and the constants that it numbers. Outputs:
// logits int32 [batch, positions, vocab]; state_out. A call shares nothing with another, so that
// one session may run in several threads.
#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel.hpp"
#include "ort_abi.hpp"

namespace sterna {
namespace {

using namespace ort;

const Api* g_api = nullptr;

// Turns a status of onnxruntime into an exception.
void require(Status* status) {
    if (!status) return;
    const std::string message = call<const char*>(g_api, Entry::GetErrorMessage,
                                                  static_cast<const Status*>(status));
    call<void>(g_api, Entry::ReleaseStatus, status);
    throw std::runtime_error(message);
}

// Calls a function of onnxruntime that gives a status.
template <class... Arguments>
void ask(Entry entry, Arguments... arguments) {
    require(call<Status*>(g_api, entry, arguments...));
}

// Runs a function that throws; gives onnxruntime the message.
template <class Function>
Status* guard(Function function) {
    ErrorCode code = kInvalidArgument;
    std::string message = "sterna::Records: ";
    try {
        function();
        return nullptr;
    } catch (const std::invalid_argument& error) {
        message += error.what();
    } catch (const std::exception& error) {
        code = kFail;
        message += error.what();
    }
    return call<Status*>(g_api, Entry::CreateStatus, code, message.c_str());
}

void* data_of(const Value* value) {
    void* data = nullptr;
    ask(Entry::GetTensorMutableData, const_cast<Value*>(value), &data);
    return data;
}

Tensor read_tensor(const Value* value) {
    Tensor tensor;
    TensorInfo* info = nullptr;
    ask(Entry::GetTensorTypeAndShape, value, &info);
    const std::unique_ptr<TensorInfo, void (*)(TensorInfo*)> freed(info, [](TensorInfo* each) {
        call<void>(g_api, Entry::ReleaseTensorTypeAndShapeInfo, each);
    });
    const TensorInfo* const from = info;
    size_t rank = 0;
    ask(Entry::GetDimensionsCount, from, &rank);
    tensor.shape.resize(rank);
    ask(Entry::GetDimensions, from, tensor.shape.data(), rank);
    ask(Entry::GetTensorElementType, from, &tensor.type);
    tensor.data = data_of(value);
    return tensor;
}

// The initialiser at an input of the node; null if it is none.
const Value* find_constant(const KernelInfo* info, int64_t index) {
    int is_constant = 0;
    const Value* value = nullptr;
    ask(Entry::KernelInfoGetConstantInput_tensor, info, static_cast<size_t>(index), &is_constant,
        &value);
    return is_constant ? value : nullptr;
}

Tensor constant(const KernelInfo* info, int64_t index) {
    const Value* const value = find_constant(info, index);
    if (value) return read_tensor(value);
    throw std::invalid_argument("input " + std::to_string(index) + " must be an initialiser");
}

std::string names_of(const KernelInfo* info) {
    size_t size = 0;
    char* const nowhere = nullptr;
    ask(Entry::KernelInfoGetAttribute_string, info, "names", nowhere, &size);
    std::string value(size, '\0');
    ask(Entry::KernelInfoGetAttribute_string, info, "names", &value[0], &size);
    return value.substr(0, value.find('\0'));
}

struct Records {
    const Kernel& kernel;
    const bool cuts;            // whether there is an input logits_from
    const Model model;

    explicit Records(const KernelInfo* info)
        : kernel(choose_kernel()), cuts(!find_constant(info, 2)),
          model(constant(info, 2 + cuts), names_of(info),
                [info, first = 3 + cuts](int64_t index) { return constant(info, first + index); }) {}

    void compute(KernelContext* context) const {
        const Tensor tokens = input(context, 0), state = input(context, 1);
        Call call;
        call.tokens = tokens.as<int64_t>("tokens", kInt64, {-1, -1});
        call.batch = tokens.shape[0];
        call.length = tokens.shape[1];
        const int32_t* const before = state.as<int32_t>(
            "state", kInt32, {model.states, call.batch, model.width});
        check_range("tokens", call.tokens, tokens.count(), 0, model.vocab - 1);
        check_range("state", before, state.count(), model.state_low, model.state_high);
        call.from = 0;
        if (cuts) {     // as the start of a Slice
            const int64_t from = *input(context, 2).as<int64_t>("logits_from", kInt64, {1});
            call.from = std::clamp(from < 0 ? from + call.length : from, int64_t{0}, call.length);
        }
        call.logits = output(context, 0, {call.batch, call.length - call.from, model.logits});
        call.state = output(context, 1, state.shape);
        std::copy(before, before + state.count(), call.state);
        call.parallel = [context](int64_t count, const Part& part) {
            void (*const run)(void*, size_t) = [](void* data, size_t index) {
                (*static_cast<const Part*>(data))(static_cast<int64_t>(index));
            };
            ask(Entry::KernelContext_ParallelFor, static_cast<const KernelContext*>(context), run,
                static_cast<size_t>(count), size_t{0},
                static_cast<void*>(const_cast<Part*>(&part)));
        };
        kernel.run(model, call);
    }

private:
    static Tensor input(const KernelContext* context, size_t index) {
        const Value* value = nullptr;
        ask(Entry::KernelContext_GetInput, context, index, &value);
        return read_tensor(value);
    }

    static int32_t* output(KernelContext* context, size_t index,
                           const std::vector<int64_t>& shape) {
        Value* value = nullptr;
        ask(Entry::KernelContext_GetOutput, context, index, shape.data(), shape.size(), &value);
        return static_cast<int32_t*>(data_of(value));
    }

    template <class T>
    static void check_range(const char* name, const T* values, int64_t count, int64_t low,
                            int64_t high) {
        for (int64_t i = 0; i < count; ++i) {
            if (values[i] < low || values[i] > high) {
                throw std::invalid_argument(
                    std::string(name) + " must be from " + std::to_string(low) + " to "
                    + std::to_string(high) + ", got " + std::to_string(values[i]));
            }
        }
    }
};

CustomOp definition() {
    CustomOp op{};
    op.version = kApiVersion;
    op.name = [](const CustomOp*) { return "Records"; };
    op.provider = [](const CustomOp*) -> const char* { return nullptr; };
    op.input_count = [](const CustomOp*) { return size_t{3}; };
    // The third is the rest of them, of any types.
    op.input_type = [](const CustomOp*, size_t index) {
        return int{index == 0 ? kInt64 : index == 1 ? kInt32 : kUndefined};
    };
    op.input_characteristic = [](const CustomOp*, size_t index) { return index == 2 ? 2 : 0; };
    op.variadic_input_min_arity = [](const CustomOp*) { return 1; };
    op.variadic_input_homogeneity = [](const CustomOp*) { return 0; };
    op.output_count = [](const CustomOp*) { return size_t{2}; };
    op.output_type = [](const CustomOp*, size_t) { return int{kInt32}; };
    op.output_characteristic = [](const CustomOp*, size_t) { return 0; };
    op.variadic_output_min_arity = [](const CustomOp*) { return 1; };
    op.variadic_output_homogeneity = [](const CustomOp*) { return 1; };
    op.input_memory_type = [](const CustomOp*, size_t) { return 0; };
    op.start_version = [](const CustomOp*) { return 1; };
    op.end_version = [](const CustomOp*) { return 0x7fffffff; };
    op.create_kernel_v2 = [](const CustomOp*, const Api*, const KernelInfo* info, void** kernel) {
        return guard([&] { *kernel = new Records(info); });
    };
    op.compute_v2 = [](void* kernel, KernelContext* context) {
        return guard([&] { static_cast<const Records*>(kernel)->compute(context); });
    };
    op.destroy = [](void* kernel) { delete static_cast<Records*>(kernel); };
    return op;
}

const CustomOp kRecords = definition();

}  // namespace
}  // namespace sterna

// What onnxruntime calls when a session registers the library.
STERNA_PUBLIC sterna::ort::Status* RegisterCustomOps(
    sterna::ort::SessionOptions* options, const sterna::ort::ApiBase* base) {
    using namespace sterna::ort;
    const Api* const api = base->get_api(kApiVersion);
    if (!api) {
        const std::string refusal =
            "it lacks version " + std::to_string(kApiVersion) + " of its own C interface";
        return call<Status*>(base->get_api(1), Entry::CreateStatus, kFail, refusal.c_str());
    }
    sterna::g_api = api;
    // It lives as long as the library, like the definition.
    static CustomOpDomain* domain = nullptr;
    Status* status = nullptr;
    if (!domain) {
        status = call<Status*>(api, Entry::CreateCustomOpDomain, "sterna", &domain);
        const CustomOp* const op = &sterna::kRecords;
        if (!status) status = call<Status*>(api, Entry::CustomOpDomain_Add, domain, op);
    }
    if (!status) status = call<Status*>(api, Entry::AddCustomOpDomain, options, domain);
    return status;
}
