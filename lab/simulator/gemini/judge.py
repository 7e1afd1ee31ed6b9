"""The judge of a request: what Google would refuse in it, but for its size. Pure: tests judge with it, too."""

from __future__ import annotations

import base64
import hmac
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

import msgspec

from lab.simulator.gemini.contents import role_of
from lab.simulator.refusals import Refused, read_members

Json = Mapping[str, Any]

_WRITTEN: Mapping[str, str] = {
    "": "contents model systemInstruction tools toolConfig generationConfig safetySettings cachedContent serviceTier "
    "store continuationToken",
    "generation_config": "stopSequences responseMimeType responseSchema responseJsonSchema responseModalities "
    "_responseJsonSchema candidateCount maxOutputTokens temperature topP topK seed presencePenalty frequencyPenalty "
    "responseLogprobs logprobs enableEnhancedCivicAnswers speechConfig thinkingConfig imageConfig mediaResolution",
    "thinking_config": "includeThoughts thinkingBudget thinkingLevel",
    "tool_config": "functionCallingConfig retrievalConfig includeServerSideToolInvocations",
    "content": "parts role",
    "part": "text inlineData fileData functionCall functionResponse executableCode codeExecutionResult toolCall "
    "toolResponse thought thoughtSignature partMetadata videoMetadata mediaResolution",
    "functionCall": "name! args id",
    "functionResponse": "name! response id parts willContinue scheduling",
    "inlineData": "mimeType data displayName",
    "fileData": "mimeType fileUri displayName",
}
"""Members by type of object; `!` stands behind those that are required."""
MEMBERS, REQUIRED = read_members(_WRITTEN)
BESIDE_DATA = ("thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution")
DUMMIES = (b"skip_thought_signature_validator", b"context_engineering_is_the_way_to_go")
"""Values that the vendor documents for calls without a signature of its own."""


def refusal(message: str, status: int = 400, name: str = "INVALID_ARGUMENT") -> Refused:
    return Refused(message, status, {"error": {"code": status, "message": message, "status": name}})


def check(request: Json, model: str) -> None:
    """Raise what the provider would say, but for the request's size. Members of the request are in camelCase."""
    check_members(request)
    contents: Sequence[Json] = request["contents"]
    _check_turns(contents)
    _check_signatures(contents, model)


def require(holds: object, message: str) -> None:
    if not holds:
        raise refusal(message)


# Members


def check_members(request: Json) -> None:
    """Raise what the provider would say to the names and types of members."""
    _check_object("", "", request)
    for name in ("generationConfig", "toolConfig"):
        _check_object(_snake(name), _snake(name), request.get(name) or {})
    config = request.get("generationConfig") or {}
    _check_object("generation_config.thinking_config", "thinking_config", config.get("thinkingConfig") or {})
    most = config.get("maxOutputTokens", 1)
    text = f"Invalid value at 'generation_config.max_output_tokens' (TYPE_INT32), {_shown(most)}"
    require(isinstance(most, int) and not isinstance(most, bool), text)
    text = f"* GenerateContentRequest.generation_config.max_output_tokens: max_output_tokens must be positive, {most}"
    require(most > 0, f"{text}.")
    if request.get("cachedContent"):
        beside = any(request.get(name) for name in ("systemInstruction", "tools", "toolConfig"))
        text = "CachedContent can not be used with GenerateContent request setting system_instruction, tools or"
        require(not beside, f"{text} tool_config.")
        raise refusal("CachedContent not found (or permission denied)", 403, "PERMISSION_DENIED")
    if request.get("systemInstruction") is not None:
        _check_content("system_instruction", request["systemInstruction"], ("user", "system"))
    require(request.get("contents"), "* GenerateContentRequest.contents: contents is not specified\n")
    require(isinstance(request["contents"], list), "Invalid value at 'contents'")
    for index, content in enumerate(request["contents"]):
        _check_content(f"contents[{index}]", content, ("user", "model"))


def _check_content(path: str, content: Any, roles: Sequence[str]) -> None:
    _check_object(path, "content", content)
    role = content.get("role") or "user"
    require(role in roles, f"Please use a valid role: {', '.join(roles)}.")
    inside = f"* GenerateContentRequest.{path}.parts"
    require(content.get("parts"), f"{inside}: contents.parts must not be empty.")
    for index, part in enumerate(content["parts"]):
        _check_part(f"{path}.parts[{index}]", part)


def _check_part(path: str, part: Any) -> None:
    _check_object(path, "part", part)
    given = [name for name in part if name not in BESIDE_DATA]
    text = f"* GenerateContentRequest.{path}.data: required oneof field 'data' must have one initialized field"
    require(given, text)
    text = f"Invalid value at '{path}' (oneof), oneof field 'data' is already set. Cannot set '{given[-1]}'"
    require(len(given) == 1, text)
    [name] = given
    if name == "text":
        require(isinstance(part["text"], str), f"Invalid value at '{path}.text' (TYPE_STRING), {_shown(part['text'])}")
    elif name in MEMBERS:
        inside = f"{path}.{_snake(name)}"
        _check_object(inside, name, part[name])
        if name in ("functionCall", "functionResponse"):
            held = part[name].get("args" if name == "functionCall" else "response", {})
            member = "args" if name == "functionCall" else "response"
            kind = "(type.googleapis.com/google.protobuf.Struct)"
            require(isinstance(held, dict), f"Invalid value at '{inside}.{member}' {kind}, {_shown(held)}")


def _check_object(path: str, kind: str, value: Any) -> None:
    at = f" at '{path}'" if path else ""
    require(isinstance(value, dict), f"Invalid value{at}, {_shown(value)}")
    for name in value:
        text = f'Invalid JSON payload received. Unknown name "{_snake(name)}"{at}: Cannot find field.'
        require(name in MEMBERS[kind], text)
    for name in REQUIRED[kind]:
        text = f"* GenerateContentRequest.{path}.{name}: {name.capitalize()} cannot be empty.\n"
        require(isinstance(value.get(name), str) and value[name], text)


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# Turns: neighbours of one role are one; calls are answered in the very next one, by ids, or by order and name


def _of(content: Json, name: str) -> list[Json]:
    return [part[name] for part in content["parts"] if name in part]


def _check_turns(contents: Sequence[Json]) -> None:
    """Check the order of roles. A first content of the user is this simulator's own rule: no other was recorded."""
    call_turn = "function call turn comes immediately after a user turn or after a function response turn."
    result_turn = "function response turn comes immediately after a function call turn."
    for index, content in enumerate(contents):
        before = contents[index - 1] if index else None
        if _of(content, "functionCall"):
            may_call = before and (role_of(before) == "user" or _of(before, "functionCall"))
            require(may_call, f"Please ensure that {call_turn}")
        if _of(content, "functionResponse"):
            may_answer = before and (_of(before, "functionCall") or _of(before, "functionResponse"))
            require(may_answer, f"Please ensure that {result_turn}")
    require(role_of(contents[0]) == "user", "Please ensure that multiturn requests begin with a user role.")
    text = "Please ensure that multiturn requests ends with a user role or a function response."
    require(role_of(contents[-1]) == "user", text)
    called: list[Json] = []
    for _, turn in groupby(contents, role_of):
        held = list(turn)
        _check_answers(called, [each for content in held for each in _of(content, "functionResponse")])
        called = [each for content in held for each in _of(content, "functionCall")]


def _check_answers(called: Sequence[Json], answers: Sequence[Json]) -> None:
    """Check the results of one turn's calls. Equal names and ids are this simulator's own rule."""
    text = (
        "Please ensure that the number of function response parts is equal to the number of function call parts of the"
    )
    require(len(called) == len(answers), f"{text} function call turn.")
    for member in ("id", "name"):
        if all(each.get(member) for each in (*called, *answers)):
            is_same = Counter(each[member] for each in called) == Counter(each[member] for each in answers)
            require(is_same, f"Please ensure that each function response has the {member} of its function call.")
    if not any(each.get("id") for each in answers):
        in_order = [each["name"] for each in called] == [each["name"] for each in answers]
        require(in_order, "Please ensure that function responses without ids stand in the order of their calls.")


# Signatures


_KEY = b"the simulator signs"
_MARK, _MAC = b"sim1.", 16


def is_signing(model: str) -> bool:
    """Whether a model wants a signature with the first call of each step of the current turn."""
    return re.match(r"gemini-[3-9]", model) is not None


def turn_start(contents: Sequence[Json]) -> int:
    texts = (
        index
        for index in reversed(range(len(contents)))
        if role_of(contents[index]) == "user" and any(part.get("text") for part in contents[index]["parts"])
    )
    return next(texts, 0)


def seal(model: str, thought: str, call: Json | None) -> str:
    """Signature of a thought; `call`: the call that it stands beside."""
    sealed = msgspec.json.encode([model, thought, _digest(call)])
    return base64.b64encode(_MARK + _mac(sealed) + sealed).decode()


def thought_in(signature: Any) -> str | None:
    """Thought that a signature of the simulator's holds; None for another one."""
    opened = _opened(signature)
    return None if opened is None else str(opened[1])


def is_dummy(signature: Any) -> bool:
    return _decoded(signature) in DUMMIES or str(signature).encode() in DUMMIES


def _check_signatures(contents: Sequence[Json], model: str) -> None:
    """Each is the simulator's own, for this model; in the current turn that of its call."""
    start = turn_start(contents)
    for index, content in enumerate(contents):
        for part in content["parts"]:
            signature = part.get("thoughtSignature")
            if signature is None or is_dummy(signature):
                continue
            opened = _opened(signature)
            require(opened is not None, "Invalid thought signature.")
            require(opened and opened[0] == model, "Corrupted thought signature.")
            is_its_own = index < start or (opened and opened[2] == _digest(part.get("functionCall")))
            require(is_its_own, "Invalid thought signature.")
    if is_signing(model):
        _check_steps(contents, start)


def _check_steps(contents: Sequence[Json], start: int) -> None:
    for role, step in groupby(range(start, len(contents)), lambda index: role_of(contents[index])):
        calls = ((index, part) for index in step for part in contents[index]["parts"] if "functionCall" in part)
        index, first = next(calls, (0, None))
        if role == "model" and first is not None and not first.get("thoughtSignature"):
            raise refusal(
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                "work correctly, and missing thought_signature may lead to degraded model performance. Additional "
                f"data, function call `default_api:{first['functionCall']['name']}` , position {index + 1}. Please "
                "refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
            )


def _opened(signature: Any) -> list[Any] | None:
    """Model, thought, and digest of the call; None for what the simulator never signed."""
    raw = _decoded(signature) or b""
    mac, sealed = raw[len(_MARK) :][:_MAC], raw[len(_MARK) + _MAC :]
    if not raw.startswith(_MARK) or not hmac.compare_digest(mac, _mac(sealed)):
        return None
    opened: list[Any] = msgspec.json.decode(sealed)
    return opened


def _decoded(signature: Any) -> bytes | None:
    """Bytes of a signature in either alphabet of base64; the SDKs return them in the other one."""
    try:
        plain = str(signature).encode("ascii").translate(bytes.maketrans(b"-_", b"+/")).rstrip(b"=")
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError:
        return None


def _digest(call: Json | None) -> str:
    named = None if call is None else [call.get("name"), call.get("args") or {}]
    return blake2b(msgspec.json.encode(named, order="deterministic"), digest_size=8).hexdigest()


def _mac(data: bytes) -> bytes:
    return blake2b(data, key=_KEY, digest_size=_MAC).digest()


# What the model reads


def read_contents(contents: Sequence[Json], model: str) -> Iterator[list[Any]]:
    """Texts, calls and media of each content. Models that sign read the thoughts of the current turn, too."""
    start = turn_start(contents)
    for index, content in enumerate(contents):
        held: list[Any] = []
        for part in content["parts"]:
            if index > start and is_signing(model):
                held.append(thought_in(part.get("thoughtSignature")) or "")
            read = {name: value for name, value in part.items() if name not in BESIDE_DATA}
            held.append({"type": "image"} if {"inlineData", "fileData"} & set(part) else read)
        yield held
