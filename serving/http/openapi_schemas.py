"""The shapes of bodies and answers, as JSON Schema."""

from typing import Any

from serving.http import openai_images, openai_speech
from serving.http import speak as audio
from serving.http.fields import MAX_SEED
from serving.http.model_lookup import MAX_NAME_CHARACTERS
from serving.http.synthesis_requests import MAX_ROW, MAX_SECONDS, MAX_TEMPERATURE
from speech.phonemes import MAX_CHARACTERS

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
ANY: Schema = {}


def listed(items: Schema, **rules: Any) -> Schema:
    """A list of such."""
    return {"type": "array", "items": items, **rules}


def fields(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object; fields that are not named are passed over."""
    schema: Schema = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def optional(schema: Schema) -> Schema:
    """The same, or null, which is as if it were not there."""
    return {"anyOf": [schema, {"type": "null"}]}


def word(*choices: str) -> Schema:
    """One of them."""
    return {"type": "string", "enum": list(choices)}


NAME = {"type": "string", "maxLength": MAX_NAME_CHARACTERS}
EVENT = fields(("data",), data=TEXT)  # each of a stream's, as OpenAPI 3.1 tools read it
SEED = optional({**INTEGER, "minimum": 0, "maximum": MAX_SEED})
ROW = optional({**INTEGER, "minimum": 0, "maximum": MAX_ROW})
TEMPERATURE = optional({**NUMBER, "minimum": 0, "maximum": MAX_TEMPERATURE})
NESTED = listed(listed(NUMBER, minItems=1), minItems=1)

ERROR = fields(("error",), error=TEXT)
OPENAI_ERROR = fields(
    ("error",),
    error=fields(
        ("message", "type", "param", "code"),
        message=TEXT,
        type=TEXT,
        param={"type": "null"},
        code=TEXT,
    ),
)
VERSIONS = listed(fields(("version", "state"), version=INTEGER, state=TEXT))
MODEL = fields(
    ("id", "object", "created", "owned_by", "versions"),
    id=TEXT,
    object=word("model"),
    created=INTEGER,
    owned_by=TEXT,
    versions=VERSIONS,
    canary=fields(("version", "share"), version=INTEGER, share=NUMBER),
    kind=word("sound", "picture"),
)
STATUS = fields(
    ("version", "state", "status"),
    version=TEXT,
    state=word("START", "LOADING", "AVAILABLE", "UNLOADING", "END"),
    status=fields(("error_code", "error_message"), error_code=TEXT, error_message=TEXT),
)
TENSORFLOW_PREDICT = {
    "oneOf": [
        fields(("instances",), signature_name=optional(NAME), instances=listed(ANY, minItems=1)),
        fields(("inputs",), signature_name=optional(NAME), inputs=ANY),
    ]
}
V2_PARAMETERS = fields(
    signature_name=optional(NAME),
    binary_data_output=BOOLEAN,
    timeout={**NUMBER, "minimum": 0},
)
V2_INPUT = fields(
    ("name", "shape", "datatype"),
    name=TEXT,
    shape=listed({**INTEGER, "minimum": 1}),
    datatype=TEXT,
    data=listed(ANY),
    parameters=fields(binary_data_size={**INTEGER, "minimum": 0}),
)
V2_INFER = fields(
    ("inputs",),
    id=optional(NAME),
    parameters=V2_PARAMETERS,
    inputs=listed(V2_INPUT, minItems=1),
    outputs=optional(
        listed(
            fields(("name",), name=TEXT, parameters=fields(binary_data=BOOLEAN)),
            minItems=1,
        )
    ),
)
V2_TENSOR = fields(("name", "shape", "datatype"), name=TEXT, shape=listed(INTEGER), datatype=TEXT)
V2_METADATA = fields(
    ("name", "versions", "platform", "inputs", "outputs"),
    name=TEXT,
    versions=listed(TEXT),
    platform=TEXT,
    inputs=listed(V2_TENSOR),
    outputs=listed(V2_TENSOR),
)
V2_RESULT = fields(
    ("model_name", "model_version", "outputs"),
    model_name=TEXT,
    model_version=TEXT,
    id=TEXT,
    outputs=listed(V2_TENSOR),
)
SPEAK = fields(
    frames=optional(NESTED),
    recording=optional({"type": "string", "contentEncoding": "base64"}),
    example=optional(NAME),
    text=optional({"type": "string", "maxLength": MAX_CHARACTERS}),
    seed=SEED,
    row=ROW,
    temperature=TEMPERATURE,
    speaker=optional(NAME),
    seconds=optional({**NUMBER, "exclusiveMinimum": 0, "maximum": MAX_SECONDS}),
    format=optional(word(*audio.FORMATS)),
)
DRAW = fields(
    (),
    **{"class": optional({"type": ["string", "integer"]})},
    caption=optional({"type": "string", "maxLength": 200}),
    map=optional(listed(listed(INTEGER, minItems=1), minItems=1)),
    seed=SEED,
    num=optional({**INTEGER, "minimum": 1}),
    temperature=optional({"anyOf": [NUMBER, listed(NUMBER, minItems=1)]}),
    guidance=optional({**NUMBER, "minimum": 0}),
)
IMAGES = fields(
    ("prompt",),
    model=optional(NAME),
    prompt={"type": "string", "minLength": 1, "maxLength": openai_images.MAX_PROMPT_CHARACTERS},
    n=optional({**INTEGER, "minimum": 1, "maximum": openai_images.MAX_IMAGES}),
    size=optional(TEXT),
    response_format=optional(word("b64_json")),
    output_format=optional(word(*openai_images.FILES)),
    seed=SEED,
)
GENERATED_IMAGES = fields(
    ("created", "data", "output_format", "size"),
    created=INTEGER,
    data=listed(fields(("b64_json",), b64_json=TEXT)),
    output_format=TEXT,
    size=TEXT,
)
SPEECH = fields(
    ("input",),
    model=optional(NAME),
    input={"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS},
    voice=optional({"anyOf": [TEXT, fields(("id",), id=TEXT)]}),
    response_format=optional(word(*openai_speech.FORMATS)),
    stream_format=optional(word(*openai_speech.STREAM_FORMATS)),
    speed=optional({**NUMBER, "minimum": 0.25, "maximum": 4}),
    seed=SEED,
    temperature=TEMPERATURE,
)
EXAMPLES = fields(
    ("examples",),
    examples=listed(
        fields(("name", "text", "seconds"), name=TEXT, text=TEXT, seconds=NUMBER),
    ),
)
