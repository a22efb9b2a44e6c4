"""The command line: parse, call, print. Imports nothing heavy before a command needs it."""
