// What the operators read: a node of the graph when a session is made, and the tensors of a call.
//
// Included by ops.cpp alone.
#pragma once

#include <cmath>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel.hpp"
#include "ort_abi.hpp"

namespace sterna {
namespace {

using namespace ort;

const Api* g_api = nullptr;
// How weights arrive: INT2, or INT8 under an onnxruntime that gives no INT2 to custom operators.
int g_weight_type = kInt2;

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        text += (i ? ", " : "") + std::to_string(shape[i]);
    }
    return text + "]";
}

// Turns a status of onnxruntime into an exception.
void require(Status* status) {
    if (!status) return;
    const std::string message = call<const char*>(g_api, Entry::GetErrorMessage,
                                                  static_cast<const Status*>(status));
    call<void>(g_api, Entry::ReleaseStatus, status);
    throw std::runtime_error(message);
}

// Runs a function that throws; gives onnxruntime the message.
template <class Function>
Status* guard(const char* op, Function function) {
    ErrorCode code = kInvalidArgument;
    std::string message = std::string("sterna::") + op + ": ";
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

struct Tensor {
    const Value* value = nullptr;
    std::vector<int64_t> shape;
    int type = kUndefined;

    explicit Tensor(const Value* from) : value(from) {
        TensorInfo* info = nullptr;
        require(call<Status*>(g_api, Entry::GetTensorTypeAndShape, value, &info));
        size_t rank = 0;
        Status* status = call<Status*>(
            g_api, Entry::GetDimensionsCount, static_cast<const TensorInfo*>(info), &rank);
        if (!status) {
            shape.resize(rank);
            status = call<Status*>(g_api, Entry::GetDimensions, static_cast<const TensorInfo*>(info),
                                   shape.data(), rank);
        }
        if (!status) {
            status = call<Status*>(g_api, Entry::GetTensorElementType,
                                   static_cast<const TensorInfo*>(info), &type);
        }
        call<void>(g_api, Entry::ReleaseTensorTypeAndShapeInfo, info);
        require(status);
    }

    int64_t count() const {
        int64_t product = 1;
        for (const int64_t size : shape) product *= size;
        return product;
    }

    template <class T>
    const T* data() const {
        void* data = nullptr;
        require(call<Status*>(g_api, Entry::GetTensorMutableData, const_cast<Value*>(value), &data));
        return static_cast<const T*>(data);
    }
};

// The initialisers and attributes of a node.
struct Node {
    const KernelInfo* info;

    Tensor constant(size_t index, const char* name, int type) const {
        int is_constant = 0;
        const Value* value = nullptr;
        require(call<Status*>(g_api, Entry::KernelInfoGetConstantInput_tensor, info, index,
                              &is_constant, &value));
        if (!is_constant || !value) {
            throw std::invalid_argument(std::string(name) + " must be an initialiser");
        }
        Tensor tensor(value);
        if (tensor.type != type) {
            throw std::invalid_argument(
                std::string(name) + " has element type " + std::to_string(tensor.type)
                + " of onnxruntime's list, expected " + std::to_string(type));
        }
        return tensor;
    }

    int64_t number(const char* name) const {
        int64_t value = 0;
        try {
            require(call<Status*>(g_api, Entry::KernelInfoGetAttribute_int64, info, name, &value));
        } catch (const std::runtime_error& error) {
            throw std::invalid_argument(
                std::string("attribute ") + name + " must be a whole number ("
                + error.what() + "); load what sterna.export.native.ops.with_ops returns");
        }
        return value;
    }

    Profile profile() const {
        return read_profile([this](const char* name) { return number(name); });
    }

    Packed matrix(size_t index, const char* name, int64_t group) const {
        const Tensor tensor = constant(index, name, g_weight_type);
        if (tensor.shape.size() != 2) {
            throw std::invalid_argument(
                std::string(name) + " must be [columns, rows], got " + shape_text(tensor.shape));
        }
        try {
            const int64_t columns = tensor.shape[0], rows = tensor.shape[1];
            return tensor.type == kInt2
                ? pack_int2(tensor.data<uint8_t>(), columns, rows, group)
                : pack_int8(tensor.data<int8_t>(), columns, rows, group);
        } catch (const std::invalid_argument& error) {
            throw std::invalid_argument(std::string(name) + ": " + error.what());
        }
    }

    // Inputs index .. index + 3: weight, k, scale, bias.
    Projection projection(const Profile& p, size_t index, const char* name, int64_t parts,
                          int64_t group) const {
        const std::string base = name;
        Projection projection;
        projection.weight = matrix(index, (base + "_weight").c_str(), group);
        projection.parts = parts;
        const int64_t rows = projection.weight.rows;
        if (rows % parts) {
            throw std::invalid_argument(
                base + "_weight has " + std::to_string(rows) + " rows, expected a multiple of "
                + std::to_string(parts));
        }
        const Tensor k = constant(index + 1, (base + "_k").c_str(), kDouble);
        const Tensor scale = constant(index + 2, (base + "_scale").c_str(), kDouble);
        const Tensor bias = constant(index + 3, (base + "_bias").c_str(), kInt32);
        check_count(base + "_k", k, parts);
        check_count(base + "_scale", scale, parts);
        check_count(base + "_bias", bias, rows);
        for (int64_t part = 0; part < parts; ++part) {
            const double mantissa = k.data<double>()[part];
            int exponent = 0;
            const bool power = std::frexp(scale.data<double>()[part], &exponent) == 0.5;
            const int shift = 1 - exponent;
            if (!(mantissa >= 0 && mantissa < std::ldexp(1.0, p.mantissa_bits)
                  && mantissa == std::floor(mantissa)) || !power || shift < 0 || shift > 40) {
                throw std::invalid_argument(
                    base + "_k must be a whole number of mantissa_bits bits, and " + base
                    + "_scale a power of two from 2^-40 to 1");
            }
            projection.k.push_back(static_cast<int32_t>(mantissa));
            projection.shift.push_back(shift);
        }
        projection.bias.assign(bias.data<int32_t>(), bias.data<int32_t>() + rows);
        return projection;
    }

    static void check_count(const std::string& name, const Tensor& tensor, int64_t count) {
        if (tensor.count() != count) {
            throw std::invalid_argument(
                name + " must have " + std::to_string(count) + " numbers, got "
                + shape_text(tensor.shape));
        }
    }
};

// Inputs and outputs of one call.
struct Call {
    KernelContext* context;

    Tensor input(size_t index) const {
        const KernelContext* const from = context;
        const Value* value = nullptr;
        require(call<Status*>(g_api, Entry::KernelContext_GetInput, from, index, &value));
        return Tensor(value);
    }

    double* output(size_t index, const std::vector<int64_t>& shape) const {
        Value* value = nullptr;
        require(call<Status*>(g_api, Entry::KernelContext_GetOutput, context, index, shape.data(),
                              shape.size(), &value));
        void* data = nullptr;
        require(call<Status*>(g_api, Entry::GetTensorMutableData, value, &data));
        return static_cast<double*>(data);
    }
};

// Tokens of an input [..., columns].
int64_t tokens_of(const Tensor& x, int64_t columns, const char* name = "x") {
    if (x.shape.empty() || x.shape.back() != columns) {
        throw std::invalid_argument(
            std::string(name) + " must be [..., " + std::to_string(columns) + "], got "
            + shape_text(x.shape));
    }
    return columns ? x.count() / columns : 0;
}

void expect(int64_t got, int64_t wanted, const char* what) {
    if (got != wanted) {
        throw std::invalid_argument(
            std::string(what) + " must be " + std::to_string(wanted) + ", got "
            + std::to_string(got));
    }
}

}  // namespace
}  // namespace sterna
