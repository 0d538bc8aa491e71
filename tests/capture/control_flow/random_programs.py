"""Random Python functions full of control flow on tensors: nested, with jumps, variables set here and there."""

from __future__ import annotations

import random


class Programs:
    """One function a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loops = 0

    def function(self, name: str, depth: int = 3) -> str:
        body, names = self._block(["a", "b"], depth, "    ", in_loop=False)
        head = [f"def {name}(x):", "    a = x.mean()", "    b = x[0] - x[-1]"]
        return "\n".join([*head, *body, f"    return {' + '.join(names)}"]) + "\n"

    def _block(self, names: list[str], depth: int, indent: str, *, in_loop: bool) -> tuple[list[str], list[str]]:
        """Statements, and the variables that have a value after them."""
        lines: list[str] = []
        for _ in range(self._random.randint(1, 3)):
            kind = self._random.random()
            if kind < 0.45 or depth == 0:
                line, names = self._assignment(names)
                lines.append(indent + line)
            elif kind < 0.75:
                inner, names = self._if(names, depth, indent, in_loop=in_loop)
                lines += inner
            else:
                lines += self._loop(names, depth, indent, ends=kind < 0.9)
        return lines, names

    def _assignment(self, names: list[str]) -> tuple[str, list[str]]:
        target = self._random.choice("abcd")
        if target in names and self._random.random() < 0.3:
            return f"{target} {self._random.choice(['+=', '-=', '*='])} {self._random.choice(['0.5', *names])}", names
        value = self._value(names)
        if self._random.random() < 0.2:
            value = f"{value} if {self._test(names)} else {self._value(names)}"
        return f"{target} = {value}", list(dict.fromkeys([*names, target]))

    def _if(self, names: list[str], depth: int, indent: str, *, in_loop: bool) -> tuple[list[str], list[str]]:
        lines = [f"{indent}if {self._test(names)}:"]
        inner, then = self._block(names, depth - 1, indent + "    ", in_loop=in_loop)
        lines += inner
        jump = self._random.random()
        if in_loop and jump < 0.2:
            lines.append(f"{indent}    {self._random.choice(['break', 'continue'])}")
        elif jump < 0.3:
            lines.append(f"{indent}    return {self._random.choice(then)} * 1.0")
        if self._random.random() < 0.6:
            inner, otherwise = self._block(names, depth - 1, indent + "    ", in_loop=in_loop)
            return [*lines, f"{indent}else:", *inner], [n for n in then if n in otherwise]
        return lines, names

    def _loop(self, names: list[str], depth: int, indent: str, *, ends: bool) -> list[str]:
        self._loops += 1
        i = f"i{self._loops}"
        if ends:
            over = self._random.choice(["range(3)", "range(x.shape[0])", "x"])
            inner, _ = self._block([*names, *([i] if over == "x" else [])], depth - 1, indent + "    ", in_loop=True)
            return [f"{indent}for {i} in {over}:", *inner]
        inner, _ = self._block(names, depth - 1, indent + "    ", in_loop=True)
        return [
            f"{indent}{i} = 0",
            f"{indent}while ({self._test(names)}) and {i} < 4:",
            f"{indent}    {i} += 1",
            *inner,
        ]

    def _value(self, names: list[str]) -> str:
        v, w = self._random.choice(names), self._random.choice(names)
        ways = (f"{v} + {w}", f"{v} * 0.5", f"{v} - 1.0", f"-{v}", f"{v}.clamp(-2, 2)", f"{v} + x[0]", f"{v} * {w}")
        return self._random.choice(ways)

    def _test(self, names: list[str]) -> str:
        kind = self._random.random()
        if kind < 0.6:
            return self._comparison(names)
        if kind < 0.75:
            return f"{self._comparison(names)} and {self._comparison(names)}"
        if kind < 0.85:
            return f"{self._comparison(names)} or not {self._comparison(names)}"
        return f"-1.0 < {self._random.choice(names)} < 0.8"

    def _comparison(self, names: list[str]) -> str:
        right = self._random.choice(["0.3", "-0.4", "0.0", *names])
        return f"{self._random.choice(names)} {self._random.choice(['>', '<', '>=', '<='])} {right}"
