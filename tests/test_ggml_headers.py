"""Reading which functions ggml's headers declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftsmith import ggml
from draftsmith.dsl.errors import BuildError
from draftsmith.ggml import headers

HEADER = """
#define GGML_API extern
#define GGML_MACRO(x) \\
    GGML_API void ggml_in_a_macro(x);
#ifdef __cplusplus
extern "C" {
#endif
    // GGML_API void ggml_in_a_comment(void);
    /* GGML_API void ggml_in_a_long_comment(void); */
    typedef bool (*ggml_abort_callback)(void * data);
    GGML_API struct ggml_tensor * ggml_add(
            struct ggml_context * ctx, // the context
            struct ggml_tensor  * a);
    GGML_API const char *ggml_name(void);
    GGML_API void ggml_with_callback(void (*callback)(int), bool ggml_not_this);
    GGML_DEPRECATED(GGML_API void ggml_old(int n), "use ggml_new(n) instead");
    GGML_BACKEND_API bool ggml_cpu_has(void);
    GGML_API GGML_CALL size_t gguf_size(const struct gguf_context * ctx);
    GGML_NORETURN GGML_ATTRIBUTE_FORMAT(3, 4) GGML_API void ggml_abort(const char * file, int line);
    GGML_API extern int64_t ggml_twice(void); GGML_API int64_t ggml_thrice(void);
    static inline int ggml_static(void) { return 0; }
"""


def fake_install(root: Path, texts: dict[str, str], backends: tuple[str, ...] = ("cpu",)) -> ggml.GgmlInstall:
    (root / "include").mkdir(parents=True)
    for name, text in texts.items():
        (root / "include" / name).write_text(text)
    return ggml.GgmlInstall(root, root / "include", root / "lib", "0.9.7", "test", backends, "abc", ())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))


def test_functions_in_a_header() -> None:
    assert sorted(headers.functions_in(HEADER)) == [
        "ggml_abort",
        "ggml_add",
        "ggml_cpu_has",
        "ggml_name",
        "ggml_old",
        "ggml_thrice",
        "ggml_twice",
        "ggml_with_callback",
        "gguf_size",
    ]


def test_only_headers_of_backends_that_are_there(tmp_path: Path) -> None:
    texts = {
        "ggml.h": "GGML_API void ggml_add(void);",
        "ggml-rpc.h": "GGML_BACKEND_API void ggml_rpc(void);",
        "ggml-cuda.h": "GGML_BACKEND_API void ggml_cuda(void);",
    }
    install = fake_install(tmp_path / "ggml", texts, ("cpu", "rpc"))
    assert headers.declared_functions(install) == {"ggml_add", "ggml_rpc"}


def test_parsed_once(tmp_path: Path) -> None:
    install = fake_install(tmp_path / "ggml", {"ggml.h": "GGML_API void ggml_add(void);"})
    assert headers.declared_functions(install) == {"ggml_add"}
    (install.include_dir / "ggml.h").unlink()
    assert headers.declared_functions(install) == {"ggml_add"}
    (tmp_path / "cache" / "ggml" / "headers" / "abc.json").write_text("[")
    with pytest.raises(BuildError, match="no function declarations found in the ggml headers of"):
        headers.declared_functions(install)


def test_missing_functions_are_listed(tmp_path: Path) -> None:
    install = fake_install(tmp_path / "ggml", {"ggml.h": "GGML_API void ggml_add(void);"})
    headers.check_functions(install, ["ggml_add", "ggml_add"])
    with pytest.raises(BuildError, match=r"ggml 0\.9\.7 \(test\) lacks a function .*: ggml_z; headers: /"):
        headers.check_functions(install, ["ggml_add", "ggml_z"])
    with pytest.raises(BuildError, match="lacks 2 functions that the generated source calls: ggml_y, ggml_z"):
        headers.check_functions(install, {"ggml_z", "ggml_y"})


@pytest.mark.cpu
def test_headers_of_the_ggml_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTSMITH_CACHE")
    install = ggml.locate()
    if install is None:
        pytest.skip("ggml is not built; draftsmith ggml build")
    names = headers.declared_functions(install)
    assert len(names) > 500
    headers.check_functions(
        install,
        ["ggml_mul_mat", "ggml_backend_sched_new", "gguf_init_from_file", "ggml_backend_rpc_start_server"],
    )
