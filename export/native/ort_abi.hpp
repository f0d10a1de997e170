// The small part of onnxruntime's C interface that a library of custom operators needs.
//
// The wheel of onnxruntime brings no headers. Its C interface is a table of functions to which
// entries are only ever appended, so the numbers below hold for every release that offers
// kApiVersion. They are the positions in `struct OrtApi` of onnxruntime_c_api.h, counted in the
// public source and checked against the positions that onnxruntime itself asserts (entry 101 is
// the last of version 1, 218 of version 12, 254 of version 15).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sterna::ort {

// 18 (onnxruntime 1.18): the first with every member of CustomOp. Sterna asks for 1.24 anyway.
constexpr uint32_t kApiVersion = 18;

struct Status;
struct Value;
struct TensorInfo;
struct KernelInfo;
struct KernelContext;
struct CustomOpDomain;
struct SessionOptions;
struct ShapeInferContext;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };

enum ElementType : int {
    kUndefined = 0, kInt8 = 3, kInt32 = 6, kDouble = 11, kInt2 = 25,
};

// Entries of the table.
enum Entry : int {
    kCreateStatus = 0,
    kGetErrorMessage = 2,
    kCreateCustomOpDomain = 26,
    kCustomOpDomainAdd = 27,
    kAddCustomOpDomain = 28,
    kGetTensorMutableData = 51,
    kGetTensorElementType = 60,
    kGetDimensionsCount = 61,
    kGetDimensions = 62,
    kGetTensorTypeAndShape = 65,
    kKernelContextGetInput = 90,
    kKernelContextGetOutput = 91,
    kReleaseStatus = 93,
    kReleaseTensorTypeAndShapeInfo = 99,
    kKernelInfoGetAttributeArrayInt64 = 163,
    kKernelInfoGetNodeName = 244,
    kKernelInfoGetConstantInputTensor = 249,
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

template <class Result, class... Arguments>
Result call(const Api* api, Entry entry, Arguments... arguments) {
    using Function = Result (*)(Arguments...);
    return reinterpret_cast<Function>(api->entries[entry])(arguments...);
}

}  // namespace sterna::ort
