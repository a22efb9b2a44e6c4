"""Control tokens in texts from tasks: a tokenizer reads them as tokens wherever they stand in a text."""

import re

_MISTRAL = (
    "INST|IMG|IMG_BREAK|IMG_END|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|"
    "PREFIX|MIDDLE|SUFFIX|AUDIO|BEGIN_AUDIO"
)
_CONTROL = re.compile(
    r"<(?=\|[^<>|\s]+\|>"  # CLIP, Qwen, Phi and OmniGen: <|endoftext|>, <|image_pad|>, <|image_1|>
    r"|/?(?:think|tool_call|tool_response|tool_calls)>"  # Qwen
    r"|/?(?:s|pad|unk|mask|bos|eos|img|image|video|cls|sep)>|extra_id_\d+>"  # T5, Llama, Gemma; OmniGen's image tags
    r"|(?:start|end)_of_(?:turn|image)>|(?:image|boi|eoi)_(?:soft_)?token>|SPECIAL_\d+>)"  # Gemma, Mistral
    rf"|\[(?=/?(?:{_MISTRAL})\])"
)


def without_control_tokens(text: str) -> str:
    """`text` with a space after the first character of each control token of the known tokenizers."""
    return _CONTROL.sub(r"\g<0> ", text)
