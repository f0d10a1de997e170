// The operators of domain "sterna" for onnxruntime: what they read, and calling a kernel.
//
// Weights, scales, biases and tables are read once, when a session is made, and must be
// initialisers. A call reads x (and h) and writes the outputs; nothing else is shared between
// calls, so that one session may run in several threads.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
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

// The operators ----------------------------------------------------------------------------------

// What the layers have in common: a kernel, a profile, projections and a table.
template <class Layer>
struct LayerOp {
    const Kernel& kernel;
    Layer layer;

    explicit LayerOp(const Node& node) : kernel(choose_kernel()) {
        layer.profile = node.profile();
    }

protected:
    // Inputs index .. index + 3.
    Projection projection(const Node& node, size_t index, const char* name, int64_t parts) const {
        return node.projection(layer.profile, index, name, parts, kernel.group);
    }
    // Values of every z, `kinds` of them one after the other.
    const double* table(const Node& node, size_t index, const char* name, int64_t kinds) const {
        const Tensor values = node.constant(index, name, kDouble);
        Node::check_count(name, values, kinds << layer.profile.z_bits);
        return values.data<double>();
    }
};

// x, h, fcg (weight, k, scale, bias), out (weight, k, scale, bias), gates, and the
// reciprocals, which only the function body reads -> y, h_next.
struct MlgruOp : LayerOp<Mlgru> {
    static constexpr const char* kName = "MlgruLayer";
    static constexpr int kInputs[] = {kDouble, kDouble, kInt2, kDouble, kDouble, kInt32,
                                      kInt2, kDouble, kDouble, kInt32, kDouble, kDouble};
    static constexpr size_t kOutputs = 2;

    explicit MlgruOp(const Node& node) : LayerOp(node) {
        layer.fcg = projection(node, 2, "fcg", 3);
        layer.out = projection(node, 6, "out", 1);
        layer.gates = read_gates(layer.profile, table(node, 10, "gates", 3));
        const int64_t d = layer.out.weight.columns;
        expect(layer.fcg.weight.columns, d, "the columns of fcg_weight");
        expect(layer.fcg.weight.rows, 3 * d, "the rows of fcg_weight");
        expect(layer.out.weight.rows, d, "the rows of out_weight");
    }

    void compute(const Call& node) const {
        const Tensor x = node.input(0), h = node.input(1);
        const int64_t d = layer.out.weight.columns, tokens = tokens_of(x, d);
        const int64_t batch = h.shape.empty() || h.shape.back() != d ? 0 : h.count() / d;
        if (!batch || tokens % batch) {
            throw std::invalid_argument(
                "h must be [1, batch, " + std::to_string(d) + "] and x [1, length * batch, "
                + std::to_string(d) + "], got " + shape_text(h.shape) + " and "
                + shape_text(x.shape));
        }
        double* const y = node.output(0, x.shape);
        double* const h_next = node.output(1, h.shape);
        kernel.mlgru(layer, x.data<double>(), h.data<double>(), tokens / batch, batch, y, h_next);
    }
};

// x, gate_up (weight, k, scale, bias), down (weight, k, scale, bias), silu, reciprocals -> y.
struct GluOp : LayerOp<Glu> {
    static constexpr const char* kName = "GluLayer";
    static constexpr int kInputs[] = {kDouble, kInt2, kDouble, kDouble, kInt32,
                                      kInt2, kDouble, kDouble, kInt32, kDouble, kDouble};
    static constexpr size_t kOutputs = 1;

    explicit GluOp(const Node& node) : LayerOp(node) {
        layer.gate_up = projection(node, 1, "gate_up", 2);
        layer.down = projection(node, 5, "down", 1);
        layer.silu = read_silu(layer.profile, table(node, 9, "silu", 1));
        expect(layer.gate_up.weight.rows, 2 * layer.down.weight.columns,
               "the rows of gate_up_weight");
        expect(layer.down.weight.rows, layer.gate_up.weight.columns, "the rows of down_weight");
    }

    void compute(const Call& node) const {
        const Tensor x = node.input(0);
        const int64_t tokens = tokens_of(x, layer.gate_up.weight.columns);
        kernel.glu(layer, x.data<double>(), tokens, node.output(0, x.shape));
    }
};

// x, head (weight, k, scale, bias), reciprocals -> logits.
struct HeadOp : LayerOp<Head> {
    static constexpr const char* kName = "Head";
    static constexpr int kInputs[] = {kDouble, kInt2, kDouble, kDouble, kInt32, kDouble};
    static constexpr size_t kOutputs = 1;

    explicit HeadOp(const Node& node) : LayerOp(node) {
        layer.head = projection(node, 1, "head", 1);
    }

    void compute(const Call& node) const {
        const Tensor x = node.input(0);
        const int64_t tokens = tokens_of(x, layer.head.weight.columns);
        std::vector<int64_t> shape = x.shape;
        shape.back() = layer.head.weight.rows;
        kernel.head(layer, x.data<double>(), tokens, node.output(0, shape));
    }
};

// q, weight -> acc.
struct TernaryMatMulOp {
    static constexpr const char* kName = "TernaryMatMul";
    static constexpr int kInputs[] = {kDouble, kInt2};
    static constexpr size_t kOutputs = 1;
    const Kernel& kernel;
    Packed weight;

    explicit TernaryMatMulOp(const Node& node) : kernel(choose_kernel()) {
        weight = node.matrix(1, "weight", kernel.group);
    }

    void compute(const Call& node) const {
        const Tensor q = node.input(0);
        const int64_t tokens = tokens_of(q, weight.columns, "q");
        std::vector<int64_t> shape = q.shape;
        shape.back() = weight.rows;
        double* out = node.output(0, shape);
        const double* from = q.data<double>();
        const int64_t stride = weight.padded_columns();
        Bytes acts(static_cast<size_t>(stride));
        Bytes acc(static_cast<size_t>(weight.padded_rows()) * sizeof(int32_t));
        int8_t* const to = reinterpret_cast<int8_t*>(acts.data());
        int32_t* const sums = reinterpret_cast<int32_t*>(acc.data());
        std::memset(to, 0, acts.size());
        for (int64_t t = 0; t < tokens; ++t, from += weight.columns, out += weight.rows) {
            int32_t sum = 0;
            for (int64_t i = 0; i < weight.columns; ++i) {
                if (!(from[i] >= -127 && from[i] <= 127)) {
                    throw std::invalid_argument(
                        "q must be from -127 to 127, got " + std::to_string(from[i]));
                }
                to[i] = static_cast<int8_t>(from[i]);
                sum += to[i];
            }
            kernel.matmul(weight, to, &sum, 1, sums);
            for (int64_t row = 0; row < weight.rows; ++row) out[row] = sums[row];
        }
    }
};

template <class Op>
struct Definition : CustomOp {
    Definition() : CustomOp{} {
        version = kApiVersion;
        name = [](const CustomOp*) { return Op::kName; };
        provider = [](const CustomOp*) -> const char* { return nullptr; };
        input_count = [](const CustomOp*) { return sizeof(Op::kInputs) / sizeof(int); };
        input_type = [](const CustomOp*, size_t index) {
            return Op::kInputs[index] == kInt2 ? g_weight_type : Op::kInputs[index];
        };
        output_count = [](const CustomOp*) { return Op::kOutputs; };
        output_type = [](const CustomOp*, size_t) { return int{kDouble}; };
        // Required, in ordinary memory, none variadic.
        input_characteristic = [](const CustomOp*, size_t) { return 0; };
        output_characteristic = [](const CustomOp*, size_t) { return 0; };
        input_memory_type = [](const CustomOp*, size_t) { return 0; };
        variadic_input_min_arity = [](const CustomOp*) { return 1; };
        variadic_input_homogeneity = [](const CustomOp*) { return 1; };
        variadic_output_min_arity = [](const CustomOp*) { return 1; };
        variadic_output_homogeneity = [](const CustomOp*) { return 1; };
        start_version = [](const CustomOp*) { return 1; };
        end_version = [](const CustomOp*) { return 0x7fffffff; };
        create_kernel_v2 = [](const CustomOp*, const Api*, const KernelInfo* info, void** kernel) {
            return guard(Op::kName, [&] { *kernel = new Op(Node{info}); });
        };
        compute_v2 = [](void* kernel, KernelContext* context) {
            return guard(Op::kName, [&] { static_cast<const Op*>(kernel)->compute({context}); });
        };
        destroy = [](void* kernel) { delete static_cast<Op*>(kernel); };
    }
};

// Whether this onnxruntime has INT2 among the types of custom operators: from 1.31 on.
bool takes_int2(const char* version) {
    int major = 0, minor = 0;
    std::sscanf(version, "%d.%d", &major, &minor);
    return major > 1 || minor >= 31;
}

const Definition<MlgruOp> kMlgru;
const Definition<GluOp> kGlu;
const Definition<HeadOp> kHead;
const Definition<TernaryMatMulOp> kTernaryMatMul;

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
    sterna::g_weight_type = sterna::takes_int2(base->get_version_string()) ? kInt2 : kInt8;
    // Domains live as long as the library, like the definitions.
    static CustomOpDomain* domain = nullptr;
    Status* status = nullptr;
    if (!domain) {
        status = call<Status*>(api, Entry::CreateCustomOpDomain, "sterna", &domain);
        for (const CustomOp* op : std::initializer_list<const CustomOp*>{
                 &sterna::kMlgru, &sterna::kGlu, &sterna::kHead, &sterna::kTernaryMatMul}) {
            if (!status) status = call<Status*>(api, Entry::CustomOpDomain_Add, domain, op);
        }
    }
    if (!status) status = call<Status*>(api, Entry::AddCustomOpDomain, options, domain);
    return status;
}
