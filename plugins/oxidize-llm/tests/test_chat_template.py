"""Templates come from strangers."""

from __future__ import annotations

import sys
import time

import pytest

from oxidize_llm import ChatTemplate, GGUFFile, Model, TemplateError, Tokenizer, chat_template

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def render(source, messages=MESSAGES, **options):
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_a_conversation_becomes_the_text_that_the_model_knows():
    wanted = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert render(chat_template.CHATML) == wanted + "<|im_start|>assistant\n"
    assert render(chat_template.CHATML, add_generation_prompt=False) == wanted


def test_what_templates_use_is_there():
    assert render("{{ bos_token }}{{ messages[1]['content'] | trim }}{{ messages|length }}") == "<s>Hi2"
    assert render("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}") == "user"
    assert render("{{ messages | map(attribute='content') | join(', ') }}") == "Be brief., Hi"
    assert render("{{ messages[1] | tojson }}") == '{"role": "user", "content": "Hi"}'
    assert render("{{ 'a' ~ 1 ~ 'b' }}{{ 'x' * 3 }}{{ '%s!' % 'y' }}{{ '{}'.format(2 ** 8) }}") == "a1bxxxy!256"
    assert render("{{ 'aXb'.replace('X', '-') }}{{ 'a,b'.split(',')[1] }}{{ 'ab' | replace('a', 'c') }}") == "a-bbcb"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("  {% if true %}\nx\n  {% endif %}") == "x\n"  # blocks leave no blank lines


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ messages[0]['content'].__class__.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.sys }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}{{ messages.__len__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ cycler.__init__ }}{{ lipsum.__globals__ }}",
    ],
)
def test_a_hostile_template_reaches_nothing(source):
    with pytest.raises(TemplateError):
        render(source)
    assert MESSAGES == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_attributes_of_formatted_values_stay_hidden():
    assert render("{{ '{0.__class__}'.format(1) }}{{ ''.__class__ }}") == ""
    assert render("{{ raise_exception.__globals__ }}{{ messages | map(attribute='__class__') | first }}") == ""


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'a' | center(10**9) }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10**9) }}",
        "{{ ('a' * 3000000).replace('a', 'a' * 1000) }}",
        "{{ ('a' * 3000000) | replace('a', 'a' * 1000) }}",
        "{{ ('a' * 3000).join(['b'] * 3000) }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ [1] | batch(10**9, 0) | list }}",
        "{{ range(10**9) | list }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages | tojson(10**9) }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_that_would_exhaust_the_machine_is_stopped(source):
    start = time.perf_counter()
    with pytest.raises(TemplateError):
        render(source)
    assert time.perf_counter() - start < 5


def test_an_endless_loop_is_stopped_and_the_tracer_is_put_back(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    before = sys.gettrace()
    with pytest.raises(TemplateError, match=r"longer than 0\.2 seconds"):
        render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    assert sys.gettrace() is before


def test_a_template_may_refuse_and_may_be_wrong():
    with pytest.raises(TemplateError, match="refuses this conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match=r"not valid.*end of template"):
        render("{% if x %}")
    with pytest.raises(TemplateError, match="failed: UndefinedError"):
        render("{{ nothing.at.all }}")


def test_the_template_of_a_file(make, device):
    path = make(tokenizer__chat_template="{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    assert Model.load(path, device).template.render(MESSAGES) == "<|im_end|>Be brief.Hi"
    assert Model.load(make(), device).template is None
    with pytest.raises(TemplateError, match=r"tokenizer\.chat_template is not valid"):
        Model.load(make(tokenizer__chat_template="{{"), device)


@pytest.mark.model
def test_smollm2s_template(smollm2):
    file = GGUFFile.open(smollm2)
    tokenizer = Tokenizer(file)
    text = ChatTemplate.of(file, tokenizer).render([{"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(text, special=True).count(1) == 3
