"""The process that makes variants and proves candidates: another library that crashes there ends no search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchport.benchmark import child

COMMANDS = ("prepare", "make", "prove")


class Making:
    """Each public method is a command; it returns what is answered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self, operators: list[str], memory: int | None) -> dict[str, Any]:
        """Import the Python files that define operators."""
        child.limit_process(memory)
        for path in operators:
            from torchport.capture.sources import import_file

            import_file(Path(path))
        return {}

    def make(self, verb: str, model: str, output: str, options: dict[str, Any]) -> dict[str, Any]:
        """Write a variant of a model."""
        from torchport.optimization import variants

        variants.MAKERS[verb](Path(model), Path(output), options)
        return {}

    def prove(
        self, before: str, after: str, engine: str, threads: int | None, settings: dict[str, Any], libraries: list[str]
    ) -> dict[str, Any]:
        """Prove that a model in an engine gives the outputs of the model as given, at other sizes and values too."""
        from torchport.engines.session import open_session
        from torchport.verification.equivalence import prove_same

        session = open_session(after, engine, threads=threads, options=settings, libraries=libraries)
        proof = prove_same(before, session, libraries=libraries)
        if proof.passed:
            return {"cases": len(proof.cases)}
        failed = proof.failures[0] if proof.failures else None
        return {"failure": str(failed) if failed else "nothing could be compared", "cases": len(proof.cases)}


if __name__ == "__main__":
    child.main(Making, COMMANDS)
