// The small part of onnxruntime's C interface that a library of custom operators needs.
//
// The wheel of onnxruntime brings no headers. Its C interface is a table of functions, to which a
// release only ever appends: its own source asserts where each version of the table ends. So the
// positions below hold in every release from kApiVersion on. The types are opaque, save the one
// that describes an operator.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sterna::ort {

// 18 (onnxruntime 1.18): the first with every member of CustomOp.
constexpr uint32_t kApiVersion = 18;

struct Status;
struct Value;
struct TensorInfo;
struct MemoryInfo;
struct KernelInfo;
struct KernelContext;
struct CustomOpDomain;
struct SessionOptions;
struct ShapeInferContext;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };

// Positions in the table of `struct OrtApi`; its version 18 ends beyond all of them.
enum class Entry : size_t {
    CreateStatus = 0,
    GetErrorMessage = 2,
    CreateCustomOpDomain = 26,
    CustomOpDomain_Add = 27,
    AddCustomOpDomain = 28,
    GetTensorMutableData = 51,
    GetTensorElementType = 60,
    GetDimensionsCount = 61,
    GetDimensions = 62,
    GetTensorTypeAndShape = 65,
    KernelInfoGetAttribute_string = 87,
    KernelContext_GetInput = 90,
    KernelContext_GetOutput = 91,
    ReleaseStatus = 93,
    ReleaseTensorTypeAndShapeInfo = 99,
    KernelInfoGetConstantInput_tensor = 249,
    KernelContext_ParallelFor = 274,
};

struct Api {
    void* entries[1];
};

struct ApiBase {
    const Api* (*get_api)(uint32_t version);
    const char* (*get_version_string)();
};

// `struct OrtCustomOp`: what onnxruntime asks of an operator. Members that are null are optional.
struct CustomOp {
    uint32_t version;
    void* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*);
    const char* (*name)(const CustomOp*);
    const char* (*provider)(const CustomOp*);
    int (*input_type)(const CustomOp*, size_t);
    size_t (*input_count)(const CustomOp*);
    int (*output_type)(const CustomOp*, size_t);
    size_t (*output_count)(const CustomOp*);
    void (*compute)(void*, KernelContext*);
    void (*destroy)(void*);
    int (*input_characteristic)(const CustomOp*, size_t);
    int (*output_characteristic)(const CustomOp*, size_t);
    int (*input_memory_type)(const CustomOp*, size_t);
    int (*variadic_input_min_arity)(const CustomOp*);
    int (*variadic_input_homogeneity)(const CustomOp*);
    int (*variadic_output_min_arity)(const CustomOp*);
    int (*variadic_output_homogeneity)(const CustomOp*);
    Status* (*create_kernel_v2)(const CustomOp*, const Api*, const KernelInfo*, void**);
    Status* (*compute_v2)(void*, KernelContext*);
    Status* (*infer_output_shape)(const CustomOp*, ShapeInferContext*);
    int (*start_version)(const CustomOp*);
    int (*end_version)(const CustomOp*);
    size_t (*may_inplace)(int**, int**);
    void (*release_may_inplace)(int*, int*);
    size_t (*alias_map)(int**, int**);
    void (*release_alias_map)(int*, int*);
};

// The types of the arguments are those of the entry's declaration: nothing else checks them.
template <class Result, class... Arguments>
Result call(const Api* api, Entry entry, Arguments... arguments) {
    using Function = Result (*)(Arguments...);
    return reinterpret_cast<Function>(api->entries[static_cast<size_t>(entry)])(arguments...);
}

}  // namespace sterna::ort
