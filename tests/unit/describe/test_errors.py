import pytest

import onecurve.describe.errors as errors
from onecurve.describe.errors import OnecurveError, UserCodeError, full_text


def user_function() -> None:
    user_helper()


def user_helper() -> None:
    raise ValueError("broken picture")


def raised_by_user_code(levels: int = 1) -> UserCodeError:
    """An error of user code below `levels` frames of this package, which are compiled under its file name."""
    namespace: dict = {}
    source = "def package_frame(call, levels):\n    package_frame(call, levels - 1) if levels > 1 else call()\n"
    exec(compile(source, errors.__file__, "exec"), namespace)
    try:
        try:
            namespace["package_frame"](user_function, levels)
        except ValueError as cause:
            # The frame of this test is not the package's: leave it out, as if the package had called first.
            raise UserCodeError("data: dataset[3] raised") from cause.with_traceback(cause.__traceback__.tb_next)
    except UserCodeError as error:
        return error


def test_an_error_of_the_user_is_its_message_alone() -> None:
    assert full_text(OnecurveError("rounds = 0; it must be at least 1")) == "rounds = 0; it must be at least 1"
    assert full_text(UserCodeError("without a cause")) == "without a cause"


def test_an_error_in_user_code_shows_the_traceback_from_the_user_code_on() -> None:
    for levels in (1, 3):
        text = full_text(raised_by_user_code(levels))
        assert text.startswith("data: dataset[3] raised\n\nTraceback")
        assert "user_function" in text
        assert "user_helper" in text
        assert "package_frame" not in text
        assert text.endswith("ValueError: broken picture")


def test_an_error_inside_the_package_keeps_its_last_frame() -> None:
    namespace: dict = {}
    exec(compile("def package_frame():\n    raise ValueError('inside')\n", errors.__file__, "exec"), namespace)
    try:
        namespace["package_frame"]()
    except ValueError as cause:
        error = UserCodeError("loss raised")
        error.__cause__ = cause.with_traceback(cause.__traceback__.tb_next)
    assert "package_frame" in full_text(error)


def test_a_cause_that_was_never_raised_has_no_traceback_to_show() -> None:
    error = UserCodeError("loss raised")
    error.__cause__ = ValueError("made by hand")
    assert full_text(error) == "loss raised\n\nValueError: made by hand"


def test_any_other_error_shows_its_whole_traceback() -> None:
    with pytest.raises(ValueError, match="broken picture") as raised:
        user_function()
    assert "user_function" in full_text(raised.value)
    assert full_text(raised.value).endswith("ValueError: broken picture")
