"""What pytest must not look for doctests in: adapters to libraries that are not in the environment of `make test`."""

from importlib.util import find_spec

collect_ignore = [
    f"src/elign/integrations/{name}.py"
    for name in ("avalanche", "lightning", "transformers")
    if find_spec(name) is None
]
