"""Generated records: what `kind` of a spec's `generator` names is a function here."""
