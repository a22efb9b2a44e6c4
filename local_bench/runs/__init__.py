"""How a run goes: config, plan, ledger, phases, meter, provenance, digest."""
