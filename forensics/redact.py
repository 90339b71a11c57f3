"""Takes secrets and personal details out of everything that is written.

Forms are those the issuers publish for their tokens (prefix and length); a bare hexadecimal string is never taken, because commit
ids, hashes, addresses and GPU UUIDs look the same: keys of that form go only where their name stands before them.  A replaced
text reads `[REDACTED:kind]` and is not touched again.  All patterns are linear in the length of the line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from parsers.base import lazy

# Accounts that say nothing about a person.
SHARED_ACCOUNTS = frozenset(
    [
        "admin",
        "app",
        "azureuser",
        "centos",
        "conda",
        "coder",
        "debian",
        "default",
        "dev",
        "ec2-user",
        "hadoop",
        "jenkins",
        "jovyan",
        "linuxbrew",
        "mambauser",
        "nobody",
        "nvidia",
        "opc",
        "public",
        "ray",
        "root",
        "runner",
        "service",
        "shared",
        "slurm",
        "ubuntu",
        "user",
        "users",
        "vscode",
        "work",
        "worker",
        "workspace",
    ]
)
# What stands after the last dot of things that look like addresses and are none (systemd instances, packages, files).
_NO_MAIL = frozenset(
    [
        "service",
        "socket",
        "slice",
        "scope",
        "timer",
        "target",
        "mount",
        "device",
        "swap",
        "path",
        "py",
        "so",
        "log",
        "json",
        "yaml",
        "yml",
        "txt",
        "sh",
        "git",
        "conf",
        "whl",
        "gz",
    ]
)
_OPEN = r"(?<![A-Za-z0-9_])"
_EMPTY_VALUES = lazy(r"(?i)(?:none|null|nil|true|false|unset|empty|required|missing|invalid|not|\*+|x+|<[^>]*>|\$\{?\w+\}?|\[REDACTED.*)$")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One form.  `needs`: the pattern is tried only where one of these stands in the lower-cased text.  Group `v` is replaced, else the whole."""

    kind: str
    needs: tuple[str, ...]
    regex: re.Pattern[str]
    accept: Callable[[re.Match[str]], bool] | None = None


def _p(kind: str, needs: str, regex: str, accept: Callable[[re.Match[str]], bool] | None = None) -> Pattern:
    return Pattern(kind, tuple(needs.split()), lazy(regex), accept)


def _real_value(match: re.Match[str]) -> bool:
    return _EMPTY_VALUES.match(match["v"]) is None


def _mail(match: re.Match[str]) -> bool:
    return match[0].rpartition(".")[2].lower() not in _NO_MAIL and not match[0].startswith("git@")


def _person(match: re.Match[str]) -> bool:
    return match["v"].lower() not in SHARED_ACCOUNTS and not match["v"].startswith(("[REDACTED", "$", "{", "<", "."))


def _key_line(match: re.Match[str]) -> bool:
    # The inner lines of a PEM block; a hash has letters of one case only.
    text = match[0]
    return any(c.islower() for c in text) and any(c.isupper() for c in text) and any(c.isdigit() for c in text)


SECRETS: tuple[Pattern, ...] = (
    _p("private-key", "private key", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:(?!-----)[\s\S]){0,20000}(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----)?"),
    _p("private-key", "", r"\A[A-Za-z0-9+/]{64}\Z|\A[A-Za-z0-9+/]{30,63}={1,2}\Z", _key_line),
    _p("url-password", "://", r"(?<=://)(?!\[REDACTED)(?P<v>[^\s/:@'\"<>]{0,200}:[^\s/@'\"<>]{1,300})(?=@)"),
    _p("huggingface-token", "hf_ api_org_", _OPEN + r"(?:hf_[A-Za-z0-9]{30,100}|api_org_[A-Za-z0-9]{30,100})"),
    _p("wandb-key", "wandb_v1_ local-", _OPEN + r"(?:wandb_v1_[A-Za-z0-9_]{40,200}|local-[0-9a-f]{40}(?![0-9a-f]))"),
    _p("wandb-key", "wandb", r"(?i)wandb[_ -]?(?:api[_ -]?)?key['\"]?\s{0,4}[:=]?\s{0,4}['\"]?(?P<v>[0-9a-f]{40})(?![0-9a-f])"),
    _p("api-key", "sk-", _OPEN + r"(?<!-)sk-(?=[A-Za-z0-9_-]{0,200}[0-9])[A-Za-z0-9_-]{20,250}"),
    _p("aws-key", "akia asia", _OPEN + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _p("gcp-key", "aiza ya29.", _OPEN + r"(?:AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_.-]{20,500})"),
    _p("azure-key", "accountkey= sharedaccesskey= sig=", r"(?i)(?:AccountKey|SharedAccessKey|[?&;]sig)=(?P<v>[A-Za-z0-9+/%=]{30,200})"),
    _p("github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", _OPEN + r"(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{30,255})"),
    _p("gitlab-token", "glpat-", _OPEN + r"glpat-[A-Za-z0-9_.-]{20,100}"),
    _p("slack-token", "xox", _OPEN + r"xox[abeprs]-[A-Za-z0-9-]{10,250}"),
    _p("slack-token", "hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<v>[A-Za-z0-9/_-]{20,200})"),
    _p("package-token", "pypi-ag npm_", _OPEN + r"(?:pypi-Ag[A-Za-z0-9_-]{50,500}|npm_[A-Za-z0-9]{36}(?![A-Za-z0-9]))"),
    _p("nvidia-key", "nvapi-", _OPEN + r"nvapi-[A-Za-z0-9_-]{30,150}"),
    _p("jwt", "eyj", _OPEN + r"eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,2000}"),
    _p("bearer", "bearer ", r"(?i)\bbearer\s{1,4}(?P<v>[A-Za-z0-9._~+/=-]{16,4000})"),
    _p("bearer", "authorization", r"(?i)\bauthorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:basic|token|digest)\s{1,4}(?P<v>[A-Za-z0-9._~+/=-]{6,4000})"),
    _p(
        "secret",
        "passw secret key token pwd",
        r"(?i)(?:passwd|password|passphrase|secret|api[_-]?key|access[_-]?key|secret[_-]?key|account[_-]?key|auth[_-]?token|access[_-]?token|refresh[_-]?token"
        r"|hf[_-]token|hub[_-]token|api[_-]token|session[_-]token|secret[_-]token|private[_-]token|github[_-]token|wandb[_-]token|_pwd)"
        r"['\"]?(?:\s{0,4}=\s{0,4}|\s{0,2}:\s{1,4}|['\"]:|:(?=['\"]))['\"]?(?P<v>[^\s'\",;&()\[\]{}]{6,500})",
        _real_value,
    ),
)  # fmt: skip
PERSONAL: tuple[Pattern, ...] = (
    _p("email", "@", r"(?<![A-Za-z0-9._%+/-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![A-Za-z0-9_-])", _mail),
    _p("user", "/home/ /users/ \\users\\", r"(?i)[/\\](?:home|users)[/\\]{1,2}(?P<v>[A-Za-z0-9._@-]{1,64})", _person),
    _p("user", "user= logname= username=", r"\b(?:(?:SLURM_JOB_|SUDO_|PBS_O_|JUPYTERHUB_)?USER|LOGNAME|USERNAME|PBS_O_LOGNAME)=['\"]?(?P<v>[A-Za-z0-9._@-]{1,64})", _person),
)  # fmt: skip

# What must stand in a lower-cased text for any form that has `needs`: one look spares most texts all of them.
_NEEDED = tuple({need: None for pattern in SECRETS + PERSONAL for need in pattern.needs})
REMEMBERED = 600  # characters up to which a text's outcome is remembered: titles and sentences come back in every report


def _cleaned(text: str, personal: bool) -> tuple[str, tuple[str, ...]]:
    """`text` without secrets (and personal details), and the kinds of what was taken, one for each replacement."""
    taken: list[str] = []
    for patterns in (SECRETS, PERSONAL) if personal else (SECRETS,):
        lower = text.lower()
        hit = any(map(lower.__contains__, _NEEDED))
        for pattern in patterns:
            if not pattern.needs or (hit and any(need in lower for need in pattern.needs)):
                text = pattern.regex.sub(lambda match, p=pattern: _one(match, p, taken), text)  # type: ignore[misc]
    return text, tuple(taken)


_remembered = lru_cache(8192)(_cleaned)


def _one(match: re.Match[str], pattern: Pattern, taken: list[str]) -> str:
    if pattern.accept is not None and not pattern.accept(match):
        return match[0]
    taken.append(pattern.kind)
    mark = f"[REDACTED:{pattern.kind}]"
    if "v" not in pattern.regex.groupindex:
        return mark
    start, end = match.start("v") - match.start(), match.end("v") - match.start()
    return match[0][:start] + mark + match[0][end:]


_IP4 = lazy(r"(?<![\w.=-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.-]*\d\.\d|\w)")
_IP6 = lazy(
    r"(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}(?![\w:])|(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5}::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})?(?![\w:])"
)
# A host named as such in a line, though no source was told to be its: `host node-17`, `hostname=gpu3`, `on node r7i4n2`.
_NAMED = re.compile(
    r"(?i)\b(?:host(?:name)?|node(?:name)?|master_addr|server|machine)['\"]?\s{0,2}[=: ]\s{0,2}['\"]?"
    r"(?P<v>(?=[a-z0-9-]{0,40}\d)(?!(?:rank|step|epoch|iter|pid|cuda|local)[-_]?\d)[a-z][a-z0-9-]{2,40}(?:\.[a-z0-9-]{1,40}){0,5})(?![\w-])"
)
_DOMAIN = r"(?:\.[A-Za-z0-9-]{1,63}){0,5}\.(?:local|internal|lan|com|net|org|edu|gov|io|cn|cluster|cloud)(?![\w-])"


class Redactor:
    """Redacts texts and counts what it took, by kind, in `counts`.

    hosts: also put IP addresses and the host names given in `names` under pseudonyms (`host-1`, `ip-1`), the same one throughout.
    The result of `text` is a fixed point: redacting it again changes nothing.
    """

    def __init__(self, hosts: bool = False, names: Iterable[str] = ()):
        self._counts: Counter[str] = Counter()
        self._hosts = hosts
        self._aliases: dict[str, str] = {}
        known = sorted({n for n in names if len(n) > 1 and n not in ("localhost", "unknown")}, key=lambda n: (-len(n), n))
        self._names = (
            re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, known))})(?:{_DOMAIN})?(?![\w-])", re.IGNORECASE)
            if hosts and known
            else None
        )
        self._known = {n.lower() for n in known}

    @staticmethod
    def named(texts: Iterable[str]) -> set[str]:
        """Host names that texts call so (`host node-17`), in lower case, without their domains."""
        return {match["v"].partition(".")[0].lower() for text in texts for match in _NAMED.finditer(text)}

    @property
    def counts(self) -> Mapping[str, int]:
        """Replacements so far, kind -> number, kinds in alphabetical order."""
        return dict(sorted(self._counts.items()))

    def text(self, text: str) -> str:
        """`text` (a line or more) without secrets and personal details."""
        return self._counted(text, True)

    def name(self, text: str) -> str:
        """A file, host or rule name: only secrets (and hosts, if asked for) go, so that it can still be looked up."""
        return self._counted(text, False)

    def _counted(self, text: str, personal: bool) -> str:
        text, kinds = (_remembered if len(text) <= REMEMBERED else _cleaned)(text, personal)
        if kinds:
            self._counts.update(kinds)
        return self._addresses(text) if self._hosts else text

    def _addresses(self, text: str) -> str:
        if self._names is not None:
            text = self._names.sub(self._host, text)
        if "." in text:
            text = _IP4.sub(self._ip, text)
        if "::" in text or text.count(":") >= 7:
            text = _IP6.sub(self._ip, text)
        return text

    def _host(self, match: re.Match[str]) -> str:
        # One machine keeps one pseudonym, with or without its domain.
        name = match[0].lower()
        key = name if name in self._known else next((n for n in sorted(self._known, key=len, reverse=True) if name.startswith(n)), name)
        return self._alias("host", key.partition(".")[0])

    def _ip(self, match: re.Match[str]) -> str:
        address = match[0]
        if ":" not in address and (any(int(part) > 255 for part in address.split(".")) or address.startswith(("127.", "0.", "255."))):
            return address
        if address in ("::", "::1"):
            return address
        return self._alias("ip", address.lower())

    def _alias(self, kind: str, value: str) -> str:
        if value not in self._aliases:
            self._aliases[value] = f"{kind}-{1 + sum(a.startswith(kind) for a in self._aliases.values())}"
        self._counts[kind] += 1
        return self._aliases[value]
