"""The VLM judge: rubrics as data, a managed or external vLLM server, a bounded asynchronous client."""
