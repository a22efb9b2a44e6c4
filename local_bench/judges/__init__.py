"""What is seen: a VLM judge, metrics, rules, people."""
