"""Real agents from npm and PyPI, at pinned versions, behind the gateway: `make test-agents`.

An errand scripts the model, a client describes how a program is started, a trial runs it and counts.
"""
