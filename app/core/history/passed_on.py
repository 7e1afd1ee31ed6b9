"""Passed on: the marks by which a text says that what follows is not its sender's.

Clients without a way to send results as such write them into user messages, each in its own words: what those words
are, as clients write them, is listed here. So is what announces a document or a mail. `own_words` reads the tables.
Everything in them is a pattern without regard to case, and stands at the start of a line unless it says otherwise.
"""

from __future__ import annotations

# Tags

OWN_TAGS = frozenset(
    {"feedback", "task", "user_input", "user_message", "user_query", "user_request", "userrequest"}
)  # fmt: skip
"""Tags that editors put around what somebody typed."""
ANSWER_TAG = "answer"
"""Tag of Cline and Roo around the answer to a question that the assistant asked: it counts behind that alone."""
RESULT_TAGS = frozenset(
    "function_result function_results observation tool_output tool_response tool_result tool_results".split()  # noqa: SIM905
)
"""Tags around results: a message that begins with one is a result."""
CLIENT_TAGS = RESULT_TAGS | frozenset(
    "attached_files attachments context document documents environment_context environment_details file file_content"  # noqa: SIM905
    " file_contents files final_file_content folder_content git_commit git_working_state hook_context ide_selection"
    " retrieved_context search_results source sources system-reminder system_reminder system_warning terminal_output"
    " url_content user_instructions workspace_diagnostics".split()
)
"""Tags that clients put around what they add: what is announced inside of them goes no further than their end. One
that nothing ends goes on to the end of the message, wherever it stands on its line, if its name is of two words."""

# Results

_GIVER = (
    r"(?:tool|function|action|command|cmd|execution|exec|code|script|shell|bash|terminal|console|python|sql|program|api"
    r"|mcp|plugin|skill|sub-?agent|browser|web|search|retrieval|query|lookup|fetch|test|step)"
)
_GIVEN = r"(?:results?|outputs?|responses?|returns?|returned|return values?|observations?|logs?|errors?|stdout|stderr)"
_NAME = r"(?:[ \t_-]?call)?(?:[ \t]+[^\s:：]{1,80}){0,3}?[ \t_-]{0,2}"
"""Name of the tool, between it and what it gave."""
_FOR = r"(?:[ \t]+(?:of|from|for|by|in|on|with|to)\b[^\n]{0,200}?|[ \t]*[\[(`'\"#][^\n]{0,200}?|[ \t]+\d[^\n]{0,40}?)?"
_STOP = r"[ \t]*(?:[*_`]{0,3}[ \t]?[:：]|[\])}>】|]|[=*_-]{2,})"

RESULTS = {
    "Cline, Roo, Kilo": (
        r"\[[\w.-]{2,64} for ['\"`]",
        r"\[[\w.-]{2,64}(?: for [^\n\]]{1,200})?\][ \t]*result:",
        r"\[error\]",
        r"the tool execution failed",
        r"the user denied this operation",
        r"the content was successfully saved",
        r"the user made the following updates to your content",
        r"command (?:executed|is still running)",
        r"the browser action has been executed",
        r"tool \[[^\]\n]{1,64}\] was not executed",
        r"skipping tool due to",
        r"missing value for required parameter",
        r"\[?\[note\]",
    ),
    "OpenHands": (r"execution result\b", r"\[an error occurred during execution", r"delegated agent finished"),
    "SWE-agent": (
        r"your (?:last )?command (?:ran|has run|was)\b",
        r"\[file: [^\n]{1,300} lines total\)\]",
        r"your (?:last )?(?:output|response) (?:could not be|was not) ",
    ),
    "LangChain, ReAct, smolagents, CrewAI": (
        rf"(?:observations?|obs)(?:[ \t]*#?\d+)?{_STOP}",
        r"tool(?:[ _]?name)?[ \t]*[:：][ \t]*[\w.-]+[ \t]*$",
        r"invalid (?:or incomplete response|format: missing)",
        r"(?:execution logs|last output from code snippet|call id)[ \t]*:",
    ),
    "AutoGen, Open Interpreter": (
        r"exit ?code[ \t]*[:：]",
        r"the code (?:above|you wrote) (?:was executed|produced)",
    ),
    "aider": (r"i ran (?:this|the following)(?: shell)? command", r"and got this output", r"# fix any errors below"),
    "OpenCode, Claude Code": (r"(?:result of calling|called) the [\w-]{1,64} tool\b",),
    "adapters that have no role for results": (
        rf"[\[(][ \t]*{_GIVER}?[ \t_-]?(?:call[ \t_-]?)?{_GIVEN}\b[^\n]{{0,200}}[\])]",
        r"\[(?:tool|function|command|system)\b[^\n\]]{0,100}\]",
        r"\[[a-z]+(?:_[a-z]+)+\]",
    ),
    "transcripts of terminals": (
        r"\$[ \t]+[a-z][\w.-]*(?:[ \t][^\n]*)?\n",
        r"ran `[^`\n]{1,300}`",
        r"[A-Z]\w{1,30}\([^\n]{0,300}\)[ \t]*\n[ \t]*⎿",
        r"[ \t]*⎿",
    ),
    "any": (
        rf"(?:(?:the|here (?:is|are)|this is)(?: the)? )?{_GIVER}{_NAME}{_GIVEN}{_FOR}{_STOP}",
        rf"(?:(?:the|here (?:is|are)|this is)(?: the)? )?{_GIVER}[ \t_-]?{_GIVEN}[ \t]*$",
        rf"(?:results?|outputs?|responses?|return values?) (?:of|from|for)\b(?:[^\n]{{1,200}}?{_STOP}|[^\n.!?]{{1,200}}$)",
        r"(?:web )?search results? (?:of|from|for)\b",
        rf"[\w.-]{{1,64}}_[\w.-]{{1,64}}(?:\([^\n]{{0,200}}?\))?[ \t]+{_GIVEN}{_FOR}{_STOP}",
        r"[\w.-]{1,64}\([^\n]{0,200}?\)[ \t]*(?:->|=>|returned\b)",
    ),
    "German": (
        r"(?:werkzeug|tool|funktion|befehl|ausführung|such|abfrage|skript)\w*[ \t-]?(?:ergebnis(?:se)?|ausgaben?|antwort(?:en)?"
        rf"|rückgabe){_FOR}{_STOP}",
        rf"beobachtung(?:en)?{_STOP}",
        rf"(?:ergebnis(?:se)?|ausgaben?|antwort(?:en)?) (?:von|vom|des|der|aus)\b[^\n]{{1,200}}?{_STOP}",
    ),
    "French": (rf"(?:résultats?|sorties?|réponses?) (?:de\b|du\b|des\b|d['’])[^\n]{{1,200}}?{_STOP}",),
    "Spanish": (
        rf"(?:resultados?|salidas?|respuestas?) (?:de|del)\b[^\n]{{1,200}}?{_STOP}",
        rf"observaci(?:ón|ones){_STOP}",
    ),
    "Portuguese": (
        rf"(?:resultados?|saídas?|respostas?) (?:de|da|do)\b[^\n]{{1,200}}?{_STOP}",
        rf"observaç(?:ão|ões){_STOP}",
    ),
    "Italian": (
        rf"(?:risultat[oi]|output|rispost[ae]) (?:di\b|del\b|dello\b|della\b|dell['’])[^\n]{{1,200}}?{_STOP}",
        rf"osservazion[ei]{_STOP}",
    ),
    "Chinese": (
        r"(?:工具|函数|命令|执行|运行|搜索|查询|代码|调用)[^\n:：]{0,40}(?:结果|输出|返回|响应)[^\n:：]{0,80}[:：]",
        r"(?:观察(?:结果)?|结果|输出)[ \t]*[:：]",
    ),
    "Japanese": (
        r"(?:ツール|関数|コマンド|実行|検索|コード)[^\n:：]{0,40}(?:結果|出力|応答)[^\n:：]{0,80}[:：]",
        r"(?:観察(?:結果)?|結果|出力)[ \t]*[:：]",
    ),
}
"""Beginnings of results, by whose words they are. A result goes on to the end of the message."""
RESULT_ENDS = (r"\(open file: [^\n]{1,500}\)[ \t]*$", r"\(current directory: [^\n]{1,500}\)[ \t]*$", r"bash-\$[ \t]*$")
"""Ends of a result that nothing stands before (SWE-agent): all of the message is one."""
UNMISTAKABLE = (
    r"\[[a-z]+(?:_[a-z]+)+(?: for [^\n\]]{1,200})?\][ \t]*result:",  # Cline, Roo, Kilo
    r"execution result of \[",  # OpenHands
    r"tool response:[ \t]*\n-{5,}",  # LangChain
)
"""Beginnings of results that only programs write."""
CALLS = {
    "ReAct, LangChain, CrewAI": (r"^(?:Action|Action Input)[ \t]*:",),
    "Cline, Roo, Kilo": (r"<([a-z]+(?:_[a-z]+)+)>[\s\S]*</\1>",),
    "OpenHands, Hermes, Qwen, Mistral": (
        r"<function=[\w.-]+>",
        r"<\|?tool_calls?(?:_begin)?\|?>",
        r"<function_calls?>",
        r"<invoke name=",
        r"\[TOOL_CALLS\]",
    ),
    "SWE-agent": (r"^DISCUSSION\b[\s\S]*^```[\s\S]*^```[ \t]*\Z",),
    "smolagents": (r"<end_code>", r"</code>\s*\Z"),
    "JSON": (
        r'"(?:action|tool|tool_name|function|function_call|name)"\s*:\s*"[\w.-]{1,64}"\s*,'
        r'\s*"(?:action_input|tool_input|arguments|args|input|parameters)"\s*:',
    ),
}
"""How an assistant calls a tool in its text, by whose client reads it. With regard to case, anywhere."""
STEMS = (
    "observation", "beobachtung", "observaci", "observaç", "osservazion", "tool", "execution", "[error]", "exitcode",
    " result", "output", "工具", "观察", "结果", "ツール", "観察", "結果", "ausgabe", "ergebnis", "résultat", "resultado",
    "risultat", "context information", "added these files",
)  # fmt: skip
"""One of these is in nearly all marks: for what is too long to be read."""

# What Cline and Roo write before the words of the user, where they write it into the place of a result.

OWN_SENTENCES = (
    r"the user (?:denied this operation|approved this operation|provided|has provided)(?: and provided)?"
    r"[^\n]{0,40}? (?:feedback|context)\b[^\n]{0,200}",
    r"new instructions for task continuation:",
    r"new message to respond to with [^\n]{1,200}",
    r"you seem to be having trouble proceeding\. [^\n]{1,200}",
)
"""Before one of the own tags, in a part of its own or after a note."""
NOTES = (r"\[task resumption\]", r"you seem to be having trouble proceeding\.")
"""Notes of the client on itself, all of the part but for own tags."""
DENIED = "The user denied this operation."
"""Text in place of a result: nothing was done, and the next part may say why."""
ASKING_TOOLS = frozenset({"ask_followup_question", "attempt_completion", "plan_mode_respond", "plan_mode_response"})
"""Their results are what the user said."""
WRITING_TOOLS = frozenset({"apply_diff", "insert_content", "replace_in_file", "search_and_replace", "write_to_file"})
"""Their results begin with words of the client, whatever else is in them."""

# Documents and mails

_SUBJECT = (
    r"(?:subject|betreff|objet|asunto|assunto|oggetto|主题|主題|件名|onderwerp|reply-to|message-id|return-path|received"
    r"|x-mailer)[*_]{0,2}[ \t]?[:：]"
)
_HEADER = (
    r"(?:from|to|cc|bcc|sent|date|von|an|kopie|gesendet|datum|de|à|copie|envoyé|para|enviado|enviada em|fecha|data|da"
    r"|inviato|发件人|收件人|抄送|发送时间|日期|差出人|宛先|送信日時|日時)[*_]{0,2}[ \t]?[:：]"
)
"""Headers of a mail: there have to be two of them."""

DOCUMENTS = {
    "retrieval: LlamaIndex, Spring AI, LangChain, AnythingLLM, Open WebUI, DeepSeek": (
        r"context information\b",
        r"(?:use|given|based on|using) the (?:following|provided|above)(?: \w+){0,3}"
        r" (?:context|documents?|information|sources?)",
        r"(?:i've|i have|we have|we've) (?:provided|given|retrieved)\b",
        r"(?:the following|these|here) (?:are|is|contents? are) (?:the |some )?(?:\w+ )?"
        r"(?:search results?|documents?|context|sources?)",
        r"(?<=\[)(?:context|document|source|webpage|page|file|passage|chunk|result|citation) ?(?:\d+|name|content)",
        r"(?:(?:relevant|retrieved|additional|extra|reference|web|search) )*(?:context|documents?|passages?|sources?"
        r"|excerpts?|snippets?|references?|materials?|search results?|attachments?)(?: ?#?\d+)?[*_]{0,2}[ \t]*"
        r"(?:[:：][*_]{0,2}[ \t]*$|[:：]?[ \t]*\n[-=]{3,})",
        r"(?<=# )(?:\w+ ){0,2}(?:search results?|reference materials?|documents?|context|sources?|attachments?)[ \t]*$",
        r"以下(?:内容)?是[^\n]{0,40}(?:搜索结果|内容|资料)",
    ),
    "files and pages: aider, Gemini CLI, readers of pages": (
        r"i have \*?added these files",
        r"here are summaries of",
        r"(?:here (?:is|are) the )?contents? (?:of|from)\b[^\n]{1,300}[:：]",
        r"content from (?:@|referenced files)",
        r"(?:file|filename|file ?path|path|url|url source|source|link)[*_]{0,2}[:：][ \t]*[`'\"<]?(?=\S*[/.])\S{3,}",
        r"(?:(?:page|web ?page|website|file|document|article|mail|message|issue|markdown) ?)?(?:contents?|body)[*_]{0,2}[:：]",
        r"(?:issue|pull request|ticket|comment|discussion) #\d+",
        r"comments? (?:by|from|on)\b[^\n]{1,120}[:：]",
        r"agents\.md instructions|\.(?:clinerules|cursorrules|roorules)\b",
        r"(?:begin|start)(?:ning)? of (?:the )?(?:file|document|page|message|mail|context|content|article|quote|text)\b",
    ),
    "what came out somewhere": (
        r"(?:responses?|logs?)[*_]{0,2}[ \t]*[:：][*_]{0,2}[ \t]*$",
        r"(?:results?|outputs?|stdout|stderr|returned|return value)[*_]{0,2}[ \t]*[:：]",
        r"traceback \(most recent call last\)",
    ),
    "what is to be worked on": (
        r"(?:please |can you |could you |bitte |por favor,? |per favore,? |请|帮我){0,2}"
        r"(?:translate|summari[sz]e|proofread|rewrite|rephrase|paraphrase|übersetze?|korrigiere?|tradui[st]|traduisez"
        r"|résume[zr]?|corrige[zr]?|traduce|traduzca|traduza|traduz|traduci|riassumi|resum[ae]|correggi|翻译|总结|润色)"
        r"[^:：\n]{0,80}[:：]",
    ),
    "mails that are quoted or passed on": (
        _SUBJECT,
        rf"{_HEADER}[^\n]{{0,300}}\n(?:[^\n]{{1,300}}\n){{0,2}}[^\w\n]{{0,6}}(?:{_HEADER}|{_SUBJECT})",
        r"(?:original message|forwarded message|ursprüngliche nachricht|weitergeleitete nachricht"
        r"|message (?:d'origine|transféré)|mensaje (?:original|reenviado)|mensagem (?:original|encaminhada)"
        r"|messaggio (?:originale|inoltrato)|原始邮件|转发的邮件|転送メッセージ)[ \t]*-{2,}",
        r"(?:begin forwarded message|anfang der weitergeleiteten (?:nachricht|e-mail)|début du message (?:réexpédié|transféré)"
        r"|inicio del mensaje reenviado|início da mensagem (?:re)?encaminhada|inizio (?:del )?messaggio inoltrato"
        r"|转发的邮件|転送されたメッセージ)[ \t]*[:：]",
        r"(?<=--)[ \t]*(?:original message|forwarded message)",
        r"(?:on|am|le|el|em|il) [^\n]{5,120} (?:wrote|schrieb[^\n]{0,60}|a écrit|escribió|escreveu|ha scritto) ?[:：][ \t]*$",
        r"[^\n]{3,120}(?:写道|のメール|さんは書きました)[ \t]*[:：]",
    ),
}
"""Announcements of somebody else's words, by what those are. They go on to the end of the message."""

HEADING_WORDS = (
    r"summar|translat|proofread|review|e-?mail|article|text\b|document|readme|\blogs?\b|following|letter|\bposts?\b"
    r"|\bsa(?:ys|id)\b|wrote|\breads?\b|output|message|transcript|paste|page|policy|quote|error|file|ticket|context"
    r"|issue\b|comment|website|search|\bresults?\b|description|forward"
    r"|zusammen|übersetz|korrigier|artikel|dokument|nachricht|folgende|brief\b|schrieb|steht|protokoll|ausgabe|datei"
    r"|kontext|kommentar|ergebnis|seite\b|weitergeleitet"
    r"|résum|tradui|corrige|courriel|texte|suivant|lettre|écrit|sortie|fichier|contexte|commentaire|résultat|transmis"
    r"|resum|traduc|correo|siguiente|carta|escrib|salida|archivo|contexto|comentario|resultado|página|reenvi"
    r"|traduz|texto|seguinte|escreve|saída|arquivo|comentário|encaminh"
    r"|riassum|tradu[cr]|correggi|testo|seguente|lettera|scritt|messaggio|contesto|commento|risultat|pagina|inoltr"
    r"|总结|翻译|文章|文档|邮件|如下|以下|写道|日志|内容|结果|输出|搜索|网页|评论|转发"
    r"|要約|翻訳|訳し|文書|メール|記事|次の|結果|出力|検索|ページ|コメント|転送"
)
"""One of these, in a line that ends with a colon, makes a document of what follows."""
RULE_WORDS = (
    r"\b(?:rules?|always|never|remember|from now on|keep in mind|preferences?|regeln?|immer|nie|niemals|ab jetzt"
    r"|règles?|toujours|jamais|désormais|reglas?|siempre|nunca|regras?|sempre|regole|d'ora in poi)\b"
    r"|规则|规矩|以后|记住|ルール|今後|覚え"
)
"""Unless there is one of these in the line."""
