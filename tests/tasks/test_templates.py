"""Templates render here as they do in transformers."""

import pytest
from chat_fixtures import FIXTURES, answer, user
from chat_templates import FAMILIES

from tasks.inputs.shapes import ShapeRules, read_row
from tasks.rejections import RowRejectedError
from tasks.templates import Template

DATE = "2026-11-30"
TAGGED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}\n{{ m.content }}{% endgeneration %}"
    "<eot>\n{% else %}U:{{ m.content }};{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fixture_is_rendered_as_transformers_does(family):
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {**FAMILIES[family].variables, "date_string": "x", "strftime_now": lambda _: "30 Nov 2026"}
    template = Template(FAMILIES[family].template, variables, DATE)
    rendered = 0
    for row in FIXTURES.values():
        chat = read_row(row, "messages", ShapeRules(), content_parts=template.takes_parts)
        for prompts in (False, True):
            try:
                [expected], _ = render_jinja_template(
                    conversations=[chat.messages],
                    tools=chat.tools,
                    chat_template=FAMILIES[family].template,
                    add_generation_prompt=prompts,
                    **variables,
                )
            except Exception:  # noqa: BLE001 - whatever a template may raise
                with pytest.raises(RowRejectedError, match="template_error"):
                    template.render(chat.messages, chat.tools, add_generation_prompt=prompts)
                continue
            assert template.render(chat.messages, chat.tools, add_generation_prompt=prompts) == expected
            rendered += 1
    assert rendered > len(FIXTURES)


def test_tags_are_found_where_transformers_finds_them():
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [user("a"), answer("b\n"), user("c"), answer("d")]
    [text], [spans] = render_jinja_template(
        conversations=[messages], chat_template=TAGGED, return_assistant_tokens_mask=True
    )
    assert Template(TAGGED, {}).render_tracked(messages) == (text, spans)
    assert Template(TAGGED, {}).render(messages) == text


def test_marks_in_a_text_are_not_taken_for_tags():
    messages = [user("\ufdd0fake\ufdd1"), answer("b")]
    text, spans = Template(TAGGED, {}).render_tracked(messages)
    assert "\ufdd0fake\ufdd1" in text
    assert [text[start:end] for start, end in spans] == ["b"]


def test_what_is_set_within_tags_stays_within():
    text = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert Template(text, {}).render([]) == "21"


def test_today_is_never_asked_of_the_clock():
    template = "{{ strftime_now('%d %b %Y') }}"
    assert Template(template, {}, DATE).render([]) == "30 Nov 2026"
    with pytest.raises(RowRejectedError, match="needs_date"):
        Template(template, {}).render([])


def test_a_template_that_only_could_ask_for_the_date_needs_none():
    assert Template("{{ date if date is defined else strftime_now('%Y') }}", {"date": "x"}).render([]) == "x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% for item in message.content %}{% endfor %}", True),
        ("{% for item in message['content'] | list %}{% endfor %}", True),
        ("{% for item in m.content[1:] %}{% endfor %}", True),
        ("{% if part.type == 'image' %}{% endif %}", True),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", False),
        ("{% for item in other.content %}{% endfor %}", False),
    ],
)
def test_whether_contents_come_in_parts_is_seen_as_sglang_sees_it(text, expected):
    assert Template(text, {}).takes_parts is expected


def test_json_in_templates_is_not_escaped_for_html():
    assert Template("{{ messages | tojson }}", {}).render([{"é": "<&>'"}]) == '[{"é": "<&>\'"}]'
