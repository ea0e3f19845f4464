"""The messages on the wire, in one text: what each field is called, its number and its type.

TensorFlow Serving's are those of its public API (a field that nothing here reads is left out, and
ignored when it comes); `inference` is the open inference protocol, version 2; `onepass` is ours.
A line `Name` begins a message, an indented `number name type` is a field of it; a type is a scalar,
a full name with a dot in front, `repeated T`, `map T` (of strings to T) or `oneof GROUP T`.
"""

DATA_TYPES = {
    "DT_INVALID": 0,
    "DT_FLOAT": 1,
    "DT_DOUBLE": 2,
    "DT_INT32": 3,
    "DT_UINT8": 4,
    "DT_INT16": 5,
    "DT_INT8": 6,
    "DT_STRING": 7,
    "DT_COMPLEX64": 8,
    "DT_INT64": 9,
    "DT_BOOL": 10,
    "DT_QINT8": 11,
    "DT_QUINT8": 12,
    "DT_QINT32": 13,
    "DT_BFLOAT16": 14,
    "DT_QINT16": 15,
    "DT_QUINT16": 16,
    "DT_UINT16": 17,
    "DT_COMPLEX128": 18,
    "DT_HALF": 19,
    "DT_RESOURCE": 20,
    "DT_VARIANT": 21,
    "DT_UINT32": 22,
    "DT_UINT64": 23,
}
ENUMS = {
    "tensorflow.DataType": DATA_TYPES,
    "tensorflow.serving.ModelVersionStatus.State": {
        "UNKNOWN": 0,
        "START": 10,
        "LOADING": 20,
        "AVAILABLE": 30,
        "UNLOADING": 40,
        "END": 50,
    },
}

TENSORFLOW = """
TensorShapeProto.Dim
  1 size int64
  2 name string
TensorShapeProto
  2 dim repeated .tensorflow.TensorShapeProto.Dim
  3 unknown_rank bool
TensorProto
  1 dtype .tensorflow.DataType
  2 tensor_shape .tensorflow.TensorShapeProto
  3 version_number int32
  4 tensor_content bytes
  13 half_val repeated int32
  5 float_val repeated float
  6 double_val repeated double
  7 int_val repeated int32
  8 string_val repeated bytes
  10 int64_val repeated int64
  11 bool_val repeated bool
  16 uint32_val repeated uint32
  17 uint64_val repeated uint64
TensorInfo
  1 name oneof encoding string
  2 dtype .tensorflow.DataType
  3 tensor_shape .tensorflow.TensorShapeProto
SignatureDef
  1 inputs map .tensorflow.TensorInfo
  2 outputs map .tensorflow.TensorInfo
  3 method_name string
"""

TENSORFLOW_SERVING = """
ModelSpec
  1 name string
  2 version oneof version_choice .google.protobuf.Int64Value
  4 version_label oneof version_choice string
  3 signature_name string
PredictRequest
  1 model_spec .tensorflow.serving.ModelSpec
  2 inputs map .tensorflow.TensorProto
  3 output_filter repeated string
PredictResponse
  2 model_spec .tensorflow.serving.ModelSpec
  1 outputs map .tensorflow.TensorProto
SignatureDefMap
  1 signature_def map .tensorflow.SignatureDef
GetModelMetadataRequest
  1 model_spec .tensorflow.serving.ModelSpec
  2 metadata_field repeated string
GetModelMetadataResponse
  1 model_spec .tensorflow.serving.ModelSpec
  2 metadata map .google.protobuf.Any
StatusProto
  1 error_code int32
  2 error_message string
ModelVersionStatus
  1 version int64
  2 state .tensorflow.serving.ModelVersionStatus.State
  3 status .tensorflow.serving.StatusProto
GetModelStatusRequest
  1 model_spec .tensorflow.serving.ModelSpec
GetModelStatusResponse
  1 model_version_status repeated .tensorflow.serving.ModelVersionStatus
ClassificationRequest
  1 model_spec .tensorflow.serving.ModelSpec
ClassificationResponse
  2 model_spec .tensorflow.serving.ModelSpec
RegressionRequest
  1 model_spec .tensorflow.serving.ModelSpec
RegressionResponse
  2 model_spec .tensorflow.serving.ModelSpec
MultiInferenceRequest
MultiInferenceResponse
"""

INFERENCE = """
ServerLiveRequest
ServerLiveResponse
  1 live bool
ServerReadyRequest
ServerReadyResponse
  1 ready bool
ModelReadyRequest
  1 name string
  2 version string
ModelReadyResponse
  1 ready bool
ServerMetadataRequest
ServerMetadataResponse
  1 name string
  2 version string
  3 extensions repeated string
ModelMetadataRequest
  1 name string
  2 version string
ModelMetadataResponse.TensorMetadata
  1 name string
  2 datatype string
  3 shape repeated int64
ModelMetadataResponse
  1 name string
  2 versions repeated string
  3 platform string
  4 inputs repeated .inference.ModelMetadataResponse.TensorMetadata
  5 outputs repeated .inference.ModelMetadataResponse.TensorMetadata
InferParameter
  1 bool_param oneof parameter_choice bool
  2 int64_param oneof parameter_choice int64
  3 string_param oneof parameter_choice string
InferTensorContents
  1 bool_contents repeated bool
  2 int_contents repeated int32
  3 int64_contents repeated int64
  4 uint_contents repeated uint32
  5 uint64_contents repeated uint64
  6 fp32_contents repeated float
  7 fp64_contents repeated double
  8 bytes_contents repeated bytes
ModelInferRequest.InferInputTensor
  1 name string
  2 datatype string
  3 shape repeated int64
  4 parameters map .inference.InferParameter
  5 contents .inference.InferTensorContents
ModelInferRequest.InferRequestedOutputTensor
  1 name string
  2 parameters map .inference.InferParameter
ModelInferRequest
  1 model_name string
  2 model_version string
  3 id string
  4 parameters map .inference.InferParameter
  5 inputs repeated .inference.ModelInferRequest.InferInputTensor
  6 outputs repeated .inference.ModelInferRequest.InferRequestedOutputTensor
  7 raw_input_contents repeated bytes
ModelInferResponse.InferOutputTensor
  1 name string
  2 datatype string
  3 shape repeated int64
  4 parameters map .inference.InferParameter
  5 contents .inference.InferTensorContents
ModelInferResponse
  1 model_name string
  2 model_version string
  3 id string
  4 parameters map .inference.InferParameter
  5 outputs repeated .inference.ModelInferResponse.InferOutputTensor
  6 raw_output_contents repeated bytes
"""

ONEPASS = """
ListRequest
Model
  1 name string
  2 version int64
  3 kind string
  4 spec_json string
ListResponse
  1 models repeated .onepass.Model
SpeakRequest
  1 model_spec .tensorflow.serving.ModelSpec
  2 frames .tensorflow.TensorProto
  3 seed int64
  4 row int32
  5 num_samples int64
  6 speaker string
  7 temperature oneof how float
SpeakResponse
  1 samples bytes
  2 sample_rate_hz int32
"""

PACKAGES = {
    "tensorflow": TENSORFLOW,
    "tensorflow.serving": TENSORFLOW_SERVING,
    "inference": INFERENCE,
    "onepass": ONEPASS,
}
# package.Service -> method -> (request, response); a response in a list is a stream of them.
SERVICES: dict[str, dict[str, tuple[str, str | list[str]]]] = {
    "tensorflow.serving.PredictionService": {
        "Classify": ("ClassificationRequest", "ClassificationResponse"),
        "Regress": ("RegressionRequest", "RegressionResponse"),
        "Predict": ("PredictRequest", "PredictResponse"),
        "MultiInference": ("MultiInferenceRequest", "MultiInferenceResponse"),
        "GetModelMetadata": ("GetModelMetadataRequest", "GetModelMetadataResponse"),
    },
    "tensorflow.serving.ModelService": {
        "GetModelStatus": ("GetModelStatusRequest", "GetModelStatusResponse"),
    },
    "inference.GRPCInferenceService": {
        "ServerLive": ("ServerLiveRequest", "ServerLiveResponse"),
        "ServerReady": ("ServerReadyRequest", "ServerReadyResponse"),
        "ModelReady": ("ModelReadyRequest", "ModelReadyResponse"),
        "ServerMetadata": ("ServerMetadataRequest", "ServerMetadataResponse"),
        "ModelMetadata": ("ModelMetadataRequest", "ModelMetadataResponse"),
        "ModelInfer": ("ModelInferRequest", "ModelInferResponse"),
    },
    "onepass.Models": {
        "List": ("ListRequest", "ListResponse"),
        "Speak": ("SpeakRequest", ["SpeakResponse"]),
    },
}
