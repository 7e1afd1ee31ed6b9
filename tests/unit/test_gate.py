"""A text becomes a chunk only if everything holds."""

import pytest

from app.core.summary.gate import Ending, SummaryAnswer, objection, visible_text
from app.core.summary.prompts import SUMMARY_PROMPT
from app.wire.chat_completions.summaries import ENDINGS
from tests.unit.conversations import count, words

ASKED = f"{SUMMARY_PROMPT}\nUse at most 300 words."


def judged(text: str, finish: str = "stop", *, calls: bool = False, at_most: int = 100, replaces: int = 1_000) -> str:
    ending = Ending.CALLED if calls else ENDINGS.get(finish, Ending.OTHER)
    found = objection(SummaryAnswer(text, ending, finish), count(text), at_most, replaces, ASKED)
    return found.text if found else "accepted"


def test_notes_of_a_fitting_size_are_accepted() -> None:
    assert judged(words(30)) == "accepted"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "summary_empty"),
        ("   \n", "summary_empty"),
        ("<think>only thoughts</think>", "summary_empty"),
        (words(19), "summary_too_short"),
        (words(126), "summary_too_long"),
        ("I'm sorry, but I can't help with that. " + words(30), "summary_refused"),
        ("I cannot summarise this conversation. " + words(30), "summary_refused"),
        ("As an AI language model, " + words(30), "summary_refused"),
        ("There is no conversation to summarize here. " + words(30), "summary_refused"),
        ("The transcript is empty, so " + words(30), "summary_refused"),
        ("Please provide the conversation that you want to have summarised. " + words(30), "summary_refused"),
        (
            "I don\u2019t see any conversation to summarize. Please provide " + words(30),
            "summary_refused",
        ),
        ("It looks like no conversation was included in your message. " + words(30), "summary_refused"),
        ("Sure! Could you please provide the conversation? " + words(30), "summary_refused"),
        ("Es tut mir leid, aber ich kann diese Unterhaltung nicht zusammenfassen, da " + words(30), "summary_refused"),
        ("Je suis désolé, mais je ne peux pas résumer cette conversation, car " + words(30), "summary_refused"),
        ("Je n\u2019ai pas accès à cette conversation, et " + words(30), "summary_refused"),
        ("Mi dispiace, ma non posso riassumere questa conversazione: " + words(30), "summary_refused"),
        ("Desculpe, mas não posso resumir esta conversa: " + words(30), "summary_refused"),
        ("Lo siento, pero no puedo resumir esta conversación porque " + words(30), "summary_refused"),
        ("抱歉。我无法总结这段对话。因为其中包含敏感的个人信息。" + words(30), "summary_refused"),
        ("我沒有看到任何對話。" + words(30), "summary_refused"),
        ("申し訳ありませんが、この会話を要約することはできません。" + words(30), "summary_refused"),
        (ASKED, "summary_refused"),
        ("Instructions: " + ASKED[:300], "summary_refused"),
        ("<think>\nOkay, the user wants notes. " + words(30), "summary_empty"),
        ("Okay, the user wants notes. " + words(30) + "\n</think>\n", "summary_empty"),
        ('<tool_call>\n{"name": "get_order", "arguments": {}}\n</tool_call> ' + words(30), "summary_is_a_tool_call"),
        ("[TOOL_CALLS] get_order " + words(30), "summary_is_a_tool_call"),
        ("<!DOCTYPE html>\n<title>502 Bad Gateway</title> " + words(110), "summariser_error_frame"),
        ("<html><head><title>502 Bad Gateway</title></head> " + words(30), "summariser_error_frame"),
        ('{"error": {"message": "Rate limit reached", "code": 1}} ' + words(30), "summariser_error_frame"),
        ('{\n  "type": "error", "error": {"message": "Overloaded"}} ' + words(30), "summariser_error_frame"),
    ],
)
def test_bad_answers_are_refused_with_the_reason(text: str, reason: str) -> None:
    assert judged(text) == reason


def test_an_unfinished_answer_is_refused() -> None:
    assert judged(words(30), "length") == "summary_not_finished:length"
    assert judged(words(30), "content_filter") == "summary_not_finished:content_filter"


def test_a_tool_call_is_no_summary() -> None:
    assert judged(words(30), "tool_calls", calls=True) == "summary_is_a_tool_call"


def test_a_summary_must_be_clearly_smaller_than_what_it_replaces() -> None:
    assert judged(words(70), replaces=100) == "accepted"
    assert judged(words(71), replaces=100) == "summary_not_smaller"


def test_a_refusal_that_is_quoted_later_is_not_one() -> None:
    assert judged("The user was told: I'm sorry, but I can't help with that. " + words(30)) == "accepted"


def test_long_notes_that_begin_with_somebodys_regret_are_no_refusal() -> None:
    assert judged("I'm sorry, I do not have my user id with me. " + words(100), at_most=200) == "accepted"


@pytest.mark.parametrize(
    "text",
    [
        "The user asked why the page says <html><title>502 Bad Gateway</title>, and got ",
        'The API answered {"error": {"message": "Rate limit reached"}}, so the assistant waits. ',
        '{"goal": "a fix", "error": null} ',
        "The model wrote <tool_call> as text. ",
        "The user asked what `<think>` means.\n<think>a</think>\n",
        "The parser stops at </think> and at `</think>`\n",
        "As an AI engineer, the user wants ",
        "The user asked: please provide the invoice. ",
        "Leider kam das Paket nicht an, und die Kundin ",
        "Kann ich die Bestellung ändern?, fragte der Kunde. ",
        "Es gab keine neuen Nachrichten vom Händler. ",
        "L\u2019utilisateur est désolé du retard. ",
        "Non è stato possibile riassumere i dati, e l\u2019utente ",
        "Como asistente de dirección, la usuaria ",
        "Não houve resposta do cliente. ",
        "用户抱歉地说订单晚了。",
        "ユーザーはテキストを提供し、端末は更新に対応できませんでした。",
    ],
)
def test_a_summary_may_speak_of_what_would_be_no_summary(text: str) -> None:
    assert judged(text + words(30)) == "accepted"
    assert visible_text(text) == text.strip()


def test_what_stands_before_the_end_of_reasoning_is_no_part_of_the_summary() -> None:
    assert visible_text("Okay, the user wants notes: a < b.\n</think>\n\nThe user asked.") == "The user asked."
    assert visible_text("<think>Notes, then.</think>\n\nThe user asked.") == "The user asked."


@pytest.mark.parametrize("asked", ["", "Summary"])
def test_instructions_of_a_few_words_may_stand_in_a_summary(asked: str) -> None:
    text = "Summary: the customer wants a refund for ORD-0001 by Friday, and the clerk has asked the warehouse for it."
    answer = SummaryAnswer(text, Ending.FINISHED, "stop")
    assert objection(answer, 30, 100, 1_000, asked) is None
