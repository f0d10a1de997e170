// The functions of onnxruntime's C interface by name, in the order of its table.
//
// Entries are only ever appended to that table, so this order holds in every release. All are
// named up to the last one that is called here, and their positions follow.
#pragma once

#include <cstddef>
#include <cstdint>

#define STERNA_ORT_ENTRIES(X) \
    X(CreateStatus) X(GetErrorCode) X(GetErrorMessage) X(CreateEnv) \
    X(CreateEnvWithCustomLogger) X(EnableTelemetryEvents) X(DisableTelemetryEvents) \
    X(CreateSession) X(CreateSessionFromArray) X(Run) X(CreateSessionOptions) \
    X(SetOptimizedModelFilePath) X(CloneSessionOptions) X(SetSessionExecutionMode) \
    X(EnableProfiling) X(DisableProfiling) X(EnableMemPattern) X(DisableMemPattern) \
    X(EnableCpuMemArena) X(DisableCpuMemArena) X(SetSessionLogId) \
    X(SetSessionLogVerbosityLevel) X(SetSessionLogSeverityLevel) \
    X(SetSessionGraphOptimizationLevel) X(SetIntraOpNumThreads) X(SetInterOpNumThreads) \
    X(CreateCustomOpDomain) X(CustomOpDomain_Add) X(AddCustomOpDomain) \
    X(RegisterCustomOpsLibrary) X(SessionGetInputCount) X(SessionGetOutputCount) \
    X(SessionGetOverridableInitializerCount) X(SessionGetInputTypeInfo) \
    X(SessionGetOutputTypeInfo) X(SessionGetOverridableInitializerTypeInfo) \
    X(SessionGetInputName) X(SessionGetOutputName) X(SessionGetOverridableInitializerName) \
    X(CreateRunOptions) X(RunOptionsSetRunLogVerbosityLevel) \
    X(RunOptionsSetRunLogSeverityLevel) X(RunOptionsSetRunTag) \
    X(RunOptionsGetRunLogVerbosityLevel) X(RunOptionsGetRunLogSeverityLevel) \
    X(RunOptionsGetRunTag) X(RunOptionsSetTerminate) X(RunOptionsUnsetTerminate) \
    X(CreateTensorAsOrtValue) X(CreateTensorWithDataAsOrtValue) X(IsTensor) \
    X(GetTensorMutableData) X(FillStringTensor) X(GetStringTensorDataLength) \
    X(GetStringTensorContent) X(CastTypeInfoToTensorInfo) X(GetOnnxTypeFromTypeInfo) \
    X(CreateTensorTypeAndShapeInfo) X(SetTensorElementType) X(SetDimensions) \
    X(GetTensorElementType) X(GetDimensionsCount) X(GetDimensions) X(GetSymbolicDimensions) \
    X(GetTensorShapeElementCount) X(GetTensorTypeAndShape) X(GetTypeInfo) X(GetValueType) \
    X(CreateMemoryInfo) X(CreateCpuMemoryInfo) X(CompareMemoryInfo) X(MemoryInfoGetName) \
    X(MemoryInfoGetId) X(MemoryInfoGetMemType) X(MemoryInfoGetType) X(AllocatorAlloc) \
    X(AllocatorFree) X(AllocatorGetInfo) X(GetAllocatorWithDefaultOptions) \
    X(AddFreeDimensionOverride) X(GetValue) X(GetValueCount) X(CreateValue) \
    X(CreateOpaqueValue) X(GetOpaqueValue) X(KernelInfoGetAttribute_float) \
    X(KernelInfoGetAttribute_int64) X(KernelInfoGetAttribute_string) \
    X(KernelContext_GetInputCount) X(KernelContext_GetOutputCount) X(KernelContext_GetInput) \
    X(KernelContext_GetOutput) X(ReleaseEnv) X(ReleaseStatus) X(ReleaseMemoryInfo) \
    X(ReleaseSession) X(ReleaseValue) X(ReleaseRunOptions) X(ReleaseTypeInfo) \
    X(ReleaseTensorTypeAndShapeInfo) X(ReleaseSessionOptions) X(ReleaseCustomOpDomain) \
    X(GetDenotationFromTypeInfo) X(CastTypeInfoToMapTypeInfo) \
    X(CastTypeInfoToSequenceTypeInfo) X(GetMapKeyType) X(GetMapValueType) \
    X(GetSequenceElementType) X(ReleaseMapTypeInfo) X(ReleaseSequenceTypeInfo) \
    X(SessionEndProfiling) X(SessionGetModelMetadata) X(ModelMetadataGetProducerName) \
    X(ModelMetadataGetGraphName) X(ModelMetadataGetDomain) X(ModelMetadataGetDescription) \
    X(ModelMetadataLookupCustomMetadataMap) X(ModelMetadataGetVersion) \
    X(ReleaseModelMetadata) X(CreateEnvWithGlobalThreadPools) X(DisablePerSessionThreads) \
    X(CreateThreadingOptions) X(ReleaseThreadingOptions) \
    X(ModelMetadataGetCustomMetadataMapKeys) X(AddFreeDimensionOverrideByName) \
    X(GetAvailableProviders) X(ReleaseAvailableProviders) X(GetStringTensorElementLength) \
    X(GetStringTensorElement) X(FillStringTensorElement) X(AddSessionConfigEntry) \
    X(CreateAllocator) X(ReleaseAllocator) X(RunWithBinding) X(CreateIoBinding) \
    X(ReleaseIoBinding) X(BindInput) X(BindOutput) X(BindOutputToDevice) \
    X(GetBoundOutputNames) X(GetBoundOutputValues) X(ClearBoundInputs) X(ClearBoundOutputs) \
    X(TensorAt) X(CreateAndRegisterAllocator) X(SetLanguageProjection) \
    X(SessionGetProfilingStartTimeNs) X(SetGlobalIntraOpNumThreads) \
    X(SetGlobalInterOpNumThreads) X(SetGlobalSpinControl) X(AddInitializer) \
    X(CreateEnvWithCustomLoggerAndGlobalThreadPools) \
    X(SessionOptionsAppendExecutionProvider_CUDA) \
    X(SessionOptionsAppendExecutionProvider_ROCM) \
    X(SessionOptionsAppendExecutionProvider_OpenVINO) X(SetGlobalDenormalAsZero) \
    X(CreateArenaCfg) X(ReleaseArenaCfg) X(ModelMetadataGetGraphDescription) \
    X(SessionOptionsAppendExecutionProvider_TensorRT) X(SetCurrentGpuDeviceId) \
    X(GetCurrentGpuDeviceId) X(KernelInfoGetAttributeArray_float) \
    X(KernelInfoGetAttributeArray_int64) X(CreateArenaCfgV2) X(AddRunConfigEntry) \
    X(CreatePrepackedWeightsContainer) X(ReleasePrepackedWeightsContainer) \
    X(CreateSessionWithPrepackedWeightsContainer) \
    X(CreateSessionFromArrayWithPrepackedWeightsContainer) \
    X(SessionOptionsAppendExecutionProvider_TensorRT_V2) X(CreateTensorRTProviderOptions) \
    X(UpdateTensorRTProviderOptions) X(GetTensorRTProviderOptionsAsString) \
    X(ReleaseTensorRTProviderOptions) X(EnableOrtCustomOps) X(RegisterAllocator) \
    X(UnregisterAllocator) X(IsSparseTensor) X(CreateSparseTensorAsOrtValue) \
    X(FillSparseTensorCoo) X(FillSparseTensorCsr) X(FillSparseTensorBlockSparse) \
    X(CreateSparseTensorWithValuesAsOrtValue) X(UseCooIndices) X(UseCsrIndices) \
    X(UseBlockSparseIndices) X(GetSparseTensorFormat) X(GetSparseTensorValuesTypeAndShape) \
    X(GetSparseTensorValues) X(GetSparseTensorIndicesTypeShape) X(GetSparseTensorIndices) \
    X(HasValue) X(KernelContext_GetGPUComputeStream) X(GetTensorMemoryInfo) \
    X(GetExecutionProviderApi) X(SessionOptionsSetCustomCreateThreadFn) \
    X(SessionOptionsSetCustomThreadCreationOptions) X(SessionOptionsSetCustomJoinThreadFn) \
    X(SetGlobalCustomCreateThreadFn) X(SetGlobalCustomThreadCreationOptions) \
    X(SetGlobalCustomJoinThreadFn) X(SynchronizeBoundInputs) X(SynchronizeBoundOutputs) \
    X(SessionOptionsAppendExecutionProvider_CUDA_V2) X(CreateCUDAProviderOptions) \
    X(UpdateCUDAProviderOptions) X(GetCUDAProviderOptionsAsString) \
    X(ReleaseCUDAProviderOptions) X(SessionOptionsAppendExecutionProvider_MIGraphX) \
    X(AddExternalInitializers) X(CreateOpAttr) X(ReleaseOpAttr) X(CreateOp) X(InvokeOp) \
    X(ReleaseOp) X(SessionOptionsAppendExecutionProvider) X(CopyKernelInfo) \
    X(ReleaseKernelInfo) X(GetTrainingApi) X(SessionOptionsAppendExecutionProvider_CANN) \
    X(CreateCANNProviderOptions) X(UpdateCANNProviderOptions) \
    X(GetCANNProviderOptionsAsString) X(ReleaseCANNProviderOptions) \
    X(MemoryInfoGetDeviceType) X(UpdateEnvWithCustomLogLevel) \
    X(SetGlobalIntraOpThreadAffinity) X(RegisterCustomOpsLibrary_V2) \
    X(RegisterCustomOpsUsingFunction) X(KernelInfo_GetInputCount) \
    X(KernelInfo_GetOutputCount) X(KernelInfo_GetInputName) X(KernelInfo_GetOutputName) \
    X(KernelInfo_GetInputTypeInfo) X(KernelInfo_GetOutputTypeInfo) \
    X(KernelInfoGetAttribute_tensor) X(HasSessionConfigEntry) X(GetSessionConfigEntry) \
    X(SessionOptionsAppendExecutionProvider_Dnnl) X(CreateDnnlProviderOptions) \
    X(UpdateDnnlProviderOptions) X(GetDnnlProviderOptionsAsString) \
    X(ReleaseDnnlProviderOptions) X(KernelInfo_GetNodeName) X(KernelInfo_GetLogger) \
    X(KernelContext_GetLogger) X(Logger_LogMessage) X(Logger_GetLoggingSeverityLevel) \
    X(KernelInfoGetConstantInput_tensor) X(CastTypeInfoToOptionalTypeInfo) \
    X(GetOptionalContainedTypeInfo) X(GetResizedStringTensorElementBuffer) \
    X(KernelContext_GetAllocator) X(GetBuildInfoString)

namespace sterna::ort {

enum class Entry : uint16_t {
#define STERNA_ORT_POSITION(name) name,
    STERNA_ORT_ENTRIES(STERNA_ORT_POSITION)
#undef STERNA_ORT_POSITION
};

constexpr const char* kEntryNames[] = {
#define STERNA_ORT_NAME(name) #name,
    STERNA_ORT_ENTRIES(STERNA_ORT_NAME)
#undef STERNA_ORT_NAME
};

constexpr const char* name_of(Entry entry) { return kEntryNames[static_cast<size_t>(entry)]; }

// Where onnxruntime's own source asserts that a version of the interface ends. These find an
// entry too many or too few when the library is compiled; what each entry answers is tried
// when it is loaded (ort_trial.hpp).
constexpr bool ends_at(Entry last, int position) { return static_cast<int>(last) == position; }
static_assert(ends_at(Entry::ReleaseCustomOpDomain, 101), "ort_entries.hpp: version 1 is wrong");
static_assert(ends_at(Entry::ReleaseModelMetadata, 118), "ort_entries.hpp: version 2 is wrong");
static_assert(ends_at(Entry::ReleaseAvailableProviders, 126),
              "ort_entries.hpp: version 3 or 4 is wrong");
static_assert(ends_at(Entry::SetGlobalSpinControl, 149), "ort_entries.hpp: version 5 is wrong");
static_assert(ends_at(Entry::GetCurrentGpuDeviceId, 161),
              "ort_entries.hpp: version 6 or 7 is wrong");
static_assert(ends_at(Entry::GetSparseTensorIndices, 191),
              "ort_entries.hpp: version 8 or 9 is wrong");
static_assert(ends_at(Entry::SynchronizeBoundOutputs, 203), "ort_entries.hpp: version 10 is wrong");
static_assert(ends_at(Entry::ReleaseKernelInfo, 218), "ort_entries.hpp: version 11 or 12 is wrong");
static_assert(ends_at(Entry::GetSessionConfigEntry, 238),
              "ort_entries.hpp: version 13 or 14 is wrong");
static_assert(ends_at(Entry::GetBuildInfoString, 254), "ort_entries.hpp: version 15 is wrong");

}  // namespace sterna::ort
