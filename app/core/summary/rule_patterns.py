"""How people word rules: for each language what such a sentence begins with, holds, or asks.

Most sentences with "always" or "never" are none: somebody speaks of himself or of others. So a rule is what begins like
an order, or is said to "you"; and what begins with another subject is a tale. All of these are matched against single
sentences of bounded length, without regard to case.
"""

from __future__ import annotations

from msgspec import Struct


class Language(Struct, frozen=True):
    """Patterns of one language; empty where it has no such form."""

    opens: str
    """What may stand before it: thanks, a greeting, a name. Empty where nothing does."""
    begins: str
    """After that, or without it."""
    holds: str = r"(?!)"
    """Somewhere in it, unless it begins as a tale."""
    tale: str = r"(?!)"
    """How a sentence begins whose subject is somebody else than who is addressed."""
    asks: str = r"(?!)"
    """A question that asks for it."""
    heads: str = r"(?!)"
    """A heading under which rules are listed."""


def _opening(words: str) -> str:
    return rf"(?:(?:{words})(?:\s?[,.:;!–—-]+\s*|\s+)){{1,4}}|[^\W\d_]{{2,15}}(?: [^\W\d_]{{2,15}})?,\s+|"


_EN_STATE = (
    # After "always" and "never" what narrates, or wishes, and orders nothing.
    r"(?:an?|the|and|but|or|so|such|very|too|really|quite|pretty|great|good|nice|fun|happy|glad|excited|lovely|wonderful"
    r"|amazing|awesome|beautiful|cool|interesting|inspiring|tough|hard|easy|proud|there|here|up|down|in|on|at|with|for"
    r"|from|about|as|like|of|to|been|had|has|have|having|was|were|is|are|am|be(?= (?:there|so|my|your|an?|the|here)\b)|being"
    r"|knew|known|thought|felt|heard|seen|saw|got|gotten|gets|gave|given|gone|went|came|did|done|made|met|said|told|took"
    r"|taken|fails?|ends? up|happens?|seems?|feels?|loves?|enjoys?|wants?|wish|hope|hoping|need(?:ed)?|grateful|thankful"
    r"|believe|dream|stay(?= (?:strong|positive|true|safe))|mind|again|ever|before|once|more|better|best|easier|worth"
    r"|possible|sure|more|less|enough|my|your|his|her|our|their|i|i'm|i've|we|you|they|he|she|it|that|this|these|those"
    r"|something|someone|somebody|anything|one|two|people|time|gonna|not|know(?= (?:what|how|when|that|who|if)\b)"
    r"|a?lone|ready|open|down|welcome|appreciated?|puts?|makes?(?= me)|brings?|keeps? me|lose|stop (?!\w+ing\b)"
    r"|stop (?:believing|dreaming|learning|trying|growing|being|loving|exploring|smiling|fighting|improving)"
    r"|give up|look back|forget (?:that you|who|how|where|you)|let (?:anyone|anybody|go|fear|them)|too late|fear|quit"
    r"|underestimate|\w{3,}ed|(?!bring|string|ring|ping|sing|spring)\w+ing|\w+ly(?! (?:use|\w+e)\b))"
)
_EN_VERB = (
    r"(?:us(?:e|ing)|writ(?:e|ing)|answer(?:ing)?|repl(?:y|ying)|respond(?:ing)?|speak(?:ing)?|talk(?:ing)?|call(?:ing)?"
    r"|ask(?:ing)?|add(?:ing)?|do(?:ing)? (?:that|this|it)|mak(?:e|ing)|chang(?:e|ing)|touch(?:ing)?|modif(?:y|ying)"
    r"|edit(?:ing)?|delet(?:e|ing)|remov(?:e|ing)|commit(?:ting)?|push(?:ing)?|merg(?:e|ing)|deploy(?:ing)?|creat(?:e|ing)"
    r"|install(?:ing)?|run(?:ning)?|send(?:ing)?|book(?:ing)?|cancel(?:l?ing)?|charg(?:e|ing)|mention(?:ing)?|includ(?:e|ing)"
    r"|show(?:ing)?|repeat(?:ing)?|translat(?:e|ing)|explain(?:ing)?|apologi[sz](?:e|ing)|assum(?:e|ing)|guess(?:ing)?"
    r"|invent(?:ing)?|post(?:ing)?|publish(?:ing)?|shar(?:e|ing)|upload(?:ing)?|email(?:ing)?|contact(?:ing)?|renam(?:e|ing)"
    r"|reformat(?:ting)?|refactor(?:ing)?|format(?:ting)?|log(?:ging)?|print(?:ing)?|output(?:ting)?|put(?:ting)?"
    r"|start(?:ing)?|end(?:ing)?|cit(?:e|ing)|quot(?:e|ing)|suggest(?:ing)?|recommend(?:ing)?|say(?:ing)?|giv(?:e|ing)(?! up)"
    r"|import(?:ing)?|skip(?:ping)?|disabl(?:e|ing)|overwrit(?:e|ing)|rewrit(?:e|ing)|bump(?:ing)?|updat(?:e|ing)"
    r"|upgrad(?:e|ing)|hard-?cod(?:e|ing)|summari[sz](?:e|ing)|shorten(?:ing)?|abbreviat(?:e|ing)|round(?:ing)?"
    r"|address(?:ing)?|refer(?:ring)?|treat(?:ing)?|tag(?:ging)?|clos(?:e|ing)|open(?:ing)?|pay(?:ing)?|order(?:ing)?"
    r"|buy(?:ing)?|sign(?:ing)?|return(?:ing)?|rely(?:ing)?|leav(?:e|ing)|omit(?:ting)?|wrap(?:ping)?|indent(?:ing)?"
    r"|generat(?:e|ing)|provid(?:e|ing)|offer(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|stor(?:e|ing)|sav(?:e|ing)"
    r"|proceed(?:ing)?|go(?:ing)? ahead|access(?:ing)?|read(?:ing)?|execut(?:e|ing)|rebas(?:e|ing)|force-push(?:ing)?"
    r"|switch(?:ing)?|mix(?:ing)?|comment(?:ing)?|schedul(?:e|ing)|trust(?:ing)?|exceed(?:ing)?|spend(?:ing)?)"
)
_EN_SUBJECT = (
    r"(?:i|i'm|i've|i'd|i'll|im|he|she|they|we|it|its|it's|that|that's|this|there|there's|here|here's|my|his|her|their"
    r"|our|the|an?|he's|she's|they're|we're|we'll|she'll|he'll|they'll|some|someone|people|everyone|who|what|where|when"
    r"|how|why|which|is|are|am|was|were|do|does|did|has|have|had|wow|haha|lol)\b"
)
_EN_FUTURE = (
    r"(?:from (?:now|here|today|this point|this moment)(?: on(?: out)?(?:wards?)?| forward)?|going forward|moving forward"
    r"|henceforth|starting (?:now|today)|as of (?:now|today)|effective immediately"
    r"|(?:for|during|throughout) (?:the )?(?:rest|remainder) of (?:this|the|our) (?:conversation|chat|session|project"
    r"|discussion|thread)|for all (?:future|following|subsequent|further) \w+|in (?:all )?(?:the )?future"
    r"(?: \w+(?:ies|es|s))?)"
)
_EN_STYLE = (
    r"(?:[\w-]+ ){0,2}(?:french|english|german|spanish|portuguese|italian|chinese|mandarin|japanese|korean|dutch|polish"
    r"|russian|latin|arabic|hindi|turkish|swedish|bullet points?|markdown|plain text|prose|full sentences|json|yaml|html"
    r"|one (?:sentence|paragraph|line)|rhymes?|third person|lower ?case|upper ?case|metric|celsius)"
)

ENGLISH = Language(
    opens=_opening(
        r"ok(?:ay)?|alright|all right|great|good|perfect|cool|nice|thanks?(?: you| a lot| so much)?|also|and|but|so|then|btw"
        r"|by the way|just|hey|hi|hello|oh|well|yes|yeah|no|sure|listen|look|first(?: of all)?|second(?:ly)?|third(?:ly)?|finally"
        r"|lastly|again|one (?:more|last|other) thing|before i forget|another thing|important(?:ly)?|note|reminder|attention|p\.?s\.?"
        r"|fyi|as a reminder|for the record|quick note|actually|anyway"
    ),
    begins="|".join(
        (
            rf"(?>{_EN_FUTURE})\b[,:]?\s+(?!(?:i|i'm|i'll|i've|i'd(?! (?:like|prefer|rather))|we|we'll|we're|he|she|they|it"
            rf"|it'll|it's|there|things|life|my (?!name|preference))\b(?! (?:want|need|expect|prefer|would (?:like|prefer)"
            rf"|'d like|don't want|am called|go by)\b)|the (?:world|future)\b)",
            rf"(?:please,? )?(?:always|never(?: ever)?|under no circumstances|on no account|in no case|at no time|by no means)"
            rf",?\s+(?!{_EN_STATE}\b)[a-z\ue000]",
            r"please,? (?:do )?(?:always|never|keep|stop|avoid|refrain|remember|continue|stick|only|use only|don't|do not"
            r"|no (?:more )?\w+|make sure (?:to |that |you )+(?:always|never))\b(?! (?:worry|hesitate|forget about|mind|take"
            r" your time|let me know))",
            rf"(?:do not|don't|dont) (?:you )?ever,?\s+(?!{_EN_STATE}\b)",
            rf"(?:do not|don't|dont) {_EN_VERB}\b",
            r"(?:you )?(?:please )?(?:do not|don't|dont|never) forget(?:,|:| that i\b| that my\b| to (?:always|never)\b| my\b"
            r"| i(?:'m| am| have| prefer| want| need| don't| never| always| only)\b)",
            r"(?:please,? |also |always |and ){0,2}(?:remember|keep in mind|bear in mind|note|take note|make a note)(?: please"
            r"| for (?:later|the future|next time))?(?:[,:]| that| to(?: always| never| only|(?= \w+ (?:me|the|in|all|your))))"
            r"(?! (?:time|day|one|night|trip|year|summer|moment|feeling|when|it|place|song|game|book|movie|guy|girl|you(?:'re"
            r" (?:not|loved|strong|never)| are (?:not|loved|never)| matter)|smile|breathe|take (?:care|time|breaks)"
            r"|we|they|love|life|everyone|there's|it's|to take|to have fun)\b)\s*\S",
            r"(?:please,? )?remember,? (?:i'm|i am|i have|i prefer|i like|i don't|i do not|i only|i never|i always|i want"
            r"|i need|my|we use|never|always|only|no)\b",
            r"(?:please,? )?keep (?:using|writing|answering|replying|responding|speaking|talking|calling|asking|adding"
            r"|following|showing|including|your|all|the (?:answers?|repl|response|tone|format|style|code|comments?|summar)"
            r"|(?:it|things|everything|this|them) (?:short|brief|concise|simple|formal|informal|casual|terse|polite|under))\b"
            r"(?! (?:up\b|spirits|head|heads|chin|dreams?|passion|options open|eyes|fingers))",
            r"(?:please,? )?stop (?:being so|with the|(?!(?:worrying|being|believing|dreaming|growing|smiling|thinking|crying|laughing)\b)[a-z]+ing)\b(?! by\b)",
            r"(?:please,? )?(?:avoid|refrain from) (?!it\b|that\b|him\b|her\b|them\b|the (?:crowds?|rain))[\w\ue000]",
            r"(?:please,? )?stick (?:to|with) (?!it\b|that\b|them\b|your\b|what\b)[\w\ue000]+",
            rf"(?:please,? )?only (?:ever )?{_EN_VERB}\b(?<!ing)",
            rf"(?:please,? )?{_EN_VERB}\b(?<!ing) (?:[\w'\ue000-]+ ){{0,4}}?(?:only|nothing but|exclusively)\b",
            r"(?:please,? )?use\b[^.]{1,100}?(?:instead of|rather than|, not |, never |throughout|everywhere|for (?:all|every)"
            r"|whenever|when writing|in (?:your|all|every))\b",
            r"(?:please,? )?use (?:tabs|spaces|metric|imperial|british|american|us english|uk english|markdown|plain text"
            r"|iso|24-hour|12-hour|celsius|fahrenheit|snake_?case|camel ?case|type hints|single quotes|double quotes|simple"
            r"|formal|informal|short|emojis?|bullet points?)\b",
            r"(?:please,? )?no (?:more )?(?:emojis?|markdown|bullet points?|small talk|tables|jargon|apologies|disclaimers"
            r"|exclamation marks?|abbreviations|code comments|semicolons|greetings|headings|lists|filler)\b",
            rf"(?:please,? )?(?:answer|reply|respond|speak|talk|communicate|write)(?: (?:to|with) me| me| everything"
            rf"| only| (?:all )?(?:your )?(?:answers?|code comments|comments|replies))*(?: only)? in (?:only )?{_EN_STYLE}\b",
            r"i(?:'d| would)? (?:much |strongly |really |generally |always |usually |still )*prefer\b(?!red)",
            r"i(?:'d| would) (?:rather|like) (?:that )?you(?:r)?\b(?! to (?:help|book|find|tell|give|check|know|look|cancel"
            r"|change|come|see|meet))",
            r"i(?: do|'d)? (?:want|need|expect|would like|like|ask)(?: for)? you (?:to )?(?:please )?(?:always|never|only|keep"
            r"|stop|avoid|not|remember|stick|refrain|continue|call me|address me)\b",
            r"i (?:want|need|expect) (?:all|every|each|any) (?:of )?(?:your |the )?(?:answers?|code|commits?|files?|functions?"
            r"|messages?|repl\w+|responses?|tests?|comments?|outputs?|changes?)\b",
            r"i (?:don't|do not|never) (?:ever )?want (?:you|to see|any)\b",
            r"(?:my (?:strong |general )?preference is|my preferred \w+(?: \w+)? (?:is|are)|my pronouns are)\b",
            r"(?:please |just |you (?:can|may|should|could) (?:just |always )?|always |everyone )*(?:call me|address me (?:as|by)"
            r"|refer to (?:me|us) (?:as|by|with))\s+(?!when|if|back|later|at\b|on\b|tomorrow|today|tonight|crazy|any ?time|asap"
            r"|maybe|once|now|soon|please[.!]?$|as\b|after|before|whenever|again|old|lucky|biased|up\b|out\b|paranoid|silly"
            r"|names)",
            r"(?:whenever|every time|each time|any ?time) (?:you|i (?:ask|say|type|write|send|paste|mention|tell|request))\b"
            r"[^,]{0,120}, ?(?!(?:i|i'm|i'll|it|it's|he|she|we|they|you(?! (?:must|should|need|have|always|never))|that|this"
            r"|there|my|the)\b)",
            r"(?:when|if) (?:i (?:ask|say|type|write|send|paste)|you (?:are (?:unsure|not sure|uncertain)|edit|change|write"
            r"|add|create|commit|refactor|don't know|do not know|book|find|see|need|make|reply|answer|fix|review))\b[^,]{0,120}"
            r", (?:then )?(?:please |always |never |do not |don't |just |you (?:must|should) )*(?:always|never|please|ask|say|tell"
            r"|use|run|add|write|check|stop|do not|don't|first|only|confirm|answer|reply|show|list|explain|mention|include"
            r"|include|give|keep|update|warn|make|quote|cite|begin|start|switch|treat|assume|format|return)\b",
            r"(?:before|after) (?:you |each |every |any |all )[^,]{1,100}, (?!(?:i|i'm|i'll|it|it's|he|she|we|they|that|this|there"
            r"|my|the|our|you(?! (?:must|should|need|have|always|never)))\b)",
            r"you (?:must|should|may|shall|can|are to|are|have to|need to|ought to) (?:please )?(?:now )?(?:always|never|only"
            r"|not ever|under no circumstances|no longer)\b(?! (?:be (?:proud|there|sorry)|hope|dream|imagine|give up|know))",
            r"you (?:must not|mustn't|may not|shall not|are not (?:allowed|permitted) to|aren't allowed to)\b",
            r"you(?:'re| are) (?:now |again )?(?:allowed|free|permitted|welcome) to [^.]{1,120}\b(?:again|now|after all)\b",
            r"you (?:may|can|could|should) (?!say|try|do (?:it|this|that)|always|see|imagine|count)[^.?]{1,120}\b(?:again|after all"
            r"|from now on)\b",
            r"you (?:may|can) (?:now|once more|once again) (?!see|imagine|relax)\w",
            r"you (?:no longer (?:need|have)|don't (?:need|have)(?= to \w[^.]*any ?more)) to\b",
            r"(?:please )?(?:forget|ignore|disregard|drop|scrap|cancel|scratch|undo|lift) (?:about )?(?:what i (?:said|told|asked"
            r"|wrote)|everything i said|(?:my|the|that|this|all) (?:\w+ )?(?:rules?|instructions?|preferences?|requirements?"
            r"|restrictions?|ban)\b)",
            r"it(?:'s| is) (?:fine|ok(?:ay)?|alright) (?:again |now )?to \w[^.]{1,100}\b(?:again|now|after all)\b",
            r"it(?:'s| is) (?:very |really )?important (?:to me )?that you\b",
            r"(?:my |house |ground |golden |new |one |important |another |general |hard |strict |first |standing |basic |the ){0,3}"
            r"rules?(?: \d+| number \w+| of mine| for you| here| in this \w+)?(?: is|:| are)(?! (?:made|simple|clear|fair|different"
            r"|pretty|so|there)\b)\s+\S",
            r"as a (?:general )?rule,? (?!(?:i|we|they|he|she|it|people)\b)",
            r"(?:nothing|no (?:one|\w+)|none of [\w ]{2,30}|don't [\w ]{2,40}|never [\w ]{2,40}) [^.]{0,100}\bwithout (?:my|asking"
            r"(?: me)?|checking with me|explicit|prior)\b(?: (?:explicit |prior |written )?(?:approval|permission|consent|ok(?:ay)?"
            r"|confirmation|go-ahead|sign-?off|first)|$|[ .!])",
            r"(?:in|for|on) (?:this|our) (?:repo(?:sitory)?|project|code ?base|team|company|conversation|chat|session)s?,? (?:please"
            r" )?(?:we |you )?(?:always|never|only|use|do not|don't|all|every|must|no|should|stick|prefer|write|keep)\b",
            r"we (?:always|never|only) (?:use|write|push|commit|merge|deploy|test|format|name|indent|ship)\b",
            r"(?:all|every|each|any) (?:of (?:your|the) )?[\w -]{2,40}? (?:must|should|has to|have to|needs to|need to|shall|may"
            r" only)(?: always| never| not)? (?:be (?:in|written|signed|named|formatted|at|under|short|tested|typed|documented"
            r"|reviewed|approved|confirmed|prefixed|given|shown)|use|follow|start|begin|end|have an?|include|contain|pass|carry"
            r"|come with|mention|go through)\b",
            r"your (?:answers?|repl(?:y|ies)|responses?|messages?|output|tone|code|comments?|commits?|summar(?:y|ies)) (?:must|should"
            r"|are to|is to|need(?:s)? to|ha(?:s|ve) to|shall)\b",
            r"treat (?:all|every|each|any|me as|my)\b",
            r"assume (?:that )?(?:i|i'm|i am|we|all|every|always)\b",
        )
    ),
    holds=(
        rf"\b(?>{_EN_FUTURE})[.!,;:)]*(?:\s+(?:please|thanks|thank you)[.!]*)?$"
        rf"|[,;:–—]\s*(?:and |but |so )?(?:please )?(?:from now on|going forward)[, ]"
        rf"|[,;–—]\s*(?:and |but |so |also )*please (?:always|never|do not|don't|keep [a-z]+ing)\b"
        r"|\bi (?:don't|do not) want you (?:to )?(?:ever )?\w+|\bi want you to (?:always|never)\b"
        r"|\buntil (?:i (?:say|tell you) (?:otherwise|so)|further notice)\b|\bunless i (?:say|tell|ask|explicitly)\b"
    ),
    tale=rf"{_EN_SUBJECT}(?<!\bi)(?! (?:want|need|expect) you)|i (?!(?:want|need|expect|don't want|do not want|would like|'d like)\b)",
    asks=(
        r"(?:can|could|would|will) you (?:please |kindly |maybe |just |also )*(?:(?:always|never|stop|keep|avoid|remember|only"
        r"|stick|refrain|not|call me|address me)\b(?! (?:mind|believe|imagine))|[^?]{1,200}\b(?:from now on|going forward|in (?:the"
        r" )?future|every time|each time|from here on|for the rest of))"
        r"|(?:can|could|may) i ask you to (?:always|never|stop|keep|avoid)|would you mind (?:always|never|not)\b"
        r"|please (?:always|never|stop|keep)\b"
    ),
    heads=(
        r"(?:[^:]{0,60}\b(?:rules?|guidelines|preferences|conventions|ground rules|standing instructions)(?: for [^:]{1,60})?"
        rf"|(?:please )?(?:always|never|remember(?: the following| this| these)?|keep in mind|do not(?: ever)?|don't(?: ever)?|avoid)"
        rf"(?: [^:]{{1,40}})?|(?:please )?(?>{_EN_FUTURE})[^:]{{0,60}}):$"
    ),
)

_DE_VERB = (
    r"(?:antworte|verwende|benutze?|nutze?|nimm|mache?|frage?|sage?|gib|zeige?|lass|halte?|füge?|pushe?|committe|lösche?"
    r"|ändere?|\w{2,}iere|übersetze?|sprich|rede|schreibe?|nenne?|duze?|sieze?|verzichte|vermeide|achte|prüfe?|teste"
    r"|buche?|bestätige|rechne|erkläre?|beginne?|beende|bleibe?|starte|führe?|lege?|stelle?|behandle|verändere|lies|rufe?"
    r"|sende|schicke?|veröffentliche|rühre?|fasse?|rate|erfinde|wiederhole?|kürze?|erwähne?|setze?|baue?|verlinke|logge"
    r"|merge|deploye|überschreibe?|lade?|teile?|speichere?|verschicke?|öffne|schließe|zahle?|bezahle?|bestelle?|kaufe?"
    r"|unterschreibe?|antworten sie|verwenden sie|benutzen sie|nutzen sie|nehmen sie|machen sie|fragen sie|sagen sie"
    r"|geben sie|zeigen sie|lassen sie|halten sie|schreiben sie|ändern sie|löschen sie|sprechen sie|buchen sie|senden sie"
    r"|schicken sie|nennen sie|vermeiden sie|achten sie|prüfen sie|bestätigen sie|\w{2,}ieren sie|fügen sie|erklären sie"
    r"|erwähnen sie|beginnen sie|übersetzen sie|bleiben sie|teilen sie|verzichten sie|führen sie|setzen sie|kürzen sie)"
)
_DE_EVER = (
    r"(?:immer|stets|nie(?:mals)?|nie wieder|grundsätzlich|ausschließlich|nur noch|keinesfalls|auf keinen fall"
    r"|unter keinen umständen|in jedem fall|ab (?:jetzt|sofort|heute|nun)|von (?:jetzt|nun) an|künftig|zukünftig"
    r"|in zukunft|fortan|weiterhin|nicht mehr|jedes ?mal)"
)
_DE_FUTURE = (
    r"(?:ab (?:jetzt|sofort|nun|heute)|von (?:jetzt|nun|heute) an|künftig|zukünftig|in zukunft|fortan"
    r"|für den rest (?:des|dieses|der|dieser|unseres) \w+|bis auf weiteres)"
)
_DE_OTHERS = r"(?:ich|wir|er|(?-i:sie)|es|man|ihr|die|das|der|mein\w*|alles)\b"

GERMAN = Language(
    opens=_opening(
        r"ok(?:ay)?|gut|super|danke(?: schön)?|und|aber|also|übrigens|außerdem|ja|nein|nun|noch etwas|noch was|wichtig|achtung"
        r"|hinweis|hallo|p\.?s\.?|eins noch|ach ja"
    ),
    begins="|".join(
        (
            rf"(?:bitte,? )?(?>{_DE_FUTURE}),?\s+(?:bitte,? )?(?!{_DE_OTHERS}|\w+ (?:ich|wir|er|es|man|(?-i:sie))\b)\S",
            rf"(?>{_DE_FUTURE}) (?:möchte|will|wünsche|erwarte|hätte) ich\b",
            r"(?:bitte,? )?(?:immer(?! (?:wieder|noch|mehr|gut|schön|gern|so|diese|wenn|diesel|das gleiche|für|da\b|nur))|nie(?:mals)?"
            r"(?: wieder)?(?! (?:mehr|wieder\b|gedacht|gehört|war|habe|hatte|im leben))|stets|auf keinen fall|keinesfalls"
            r"|unter keinen umständen|grundsätzlich)\s+(?!ich\b|wir\b)[^.!?]*?\w+(?:en|eln|ern)\b",
            rf"(?:bitte,? )?{_DE_VERB},? (?:[^.!?]{{0,80}}? )?{_DE_EVER}\b(?! wieder\b| noch\b)",
            rf"(?:bitte,? )?{_DE_VERB},? (?!(?:dir|ihnen) keine sorgen)(?:[^.!?,]{{0,60}}? )?(?:nicht|nichts|nie|keine?[nmrs]?)\b",
            rf"bitte,? (?:[^.!?,]{{0,60}} )?(?:{_DE_EVER}|nur|keine?[nmrs]?|nicht|nichts)\b(?! (?:vergessen|böse|sorgen|falsch))",
            r"(?:bitte,? )?(?:merk(?:e)? dir|merken sie sich|denk(?:e)? (?:immer )?(?:daran|dran)|denken sie (?:immer )?daran|beachte"
            r"(?:n sie)?|bedenke(?:n sie)?|behalte(?:n sie)? im (?:kopf|hinterkopf)|vergiss (?:bitte )?(?:nicht|nie|niemals)|vergessen"
            r" sie (?:bitte )?(?:nicht|nie)|zur erinnerung)\b",
            r"ich (?:bevorzuge|präferiere|ziehe [^.]{1,100} vor\b|mag (?:\w+ )?lieber|hätte (?:\w+ ){0,2}lieber|möchte lieber)\b",
            r"(?:mir (?:ist|sind|wäre(?:n)?) [^.]{1,100}\blieber|lieber (?:ist|wäre|sind|wären) mir|am liebsten (?:ist|sind|wäre)"
            r" mir)\b",
            r"ich (?:möchte|will|wünsche(?: mir)?|erwarte|bitte darum|verlange)(?: (?:immer|nicht|auf keinen fall|nur|bitte))*, dass"
            r" (?:du|sie|alle|jede|deine|ihre|die (?:antwort|kommentar|tests?))",
            r"ich (?:möchte|will) (?:\w+ )?(?:nie(?:mals|\b)|nie wieder|keine?n? (?:emojis|kommentare|tabellen|aufzählung\w*|anglizismen"
            r"|erklärungen|floskeln|entschuldigungen))\b",
            r"(?:bitte,? )?(?:nenn(?:e)? mich|nennen sie mich|duze? mich|sieze? mich|sprich mich|sprechen sie mich|sag(?:e)? du zu mir"
            r"|(?:du|sie) (?:kannst|darfst|können|dürfen) mich [^.]{1,60}(?:nennen|duzen|siezen|ansprechen))\b",
            r"(?:bitte,? )?(?:bleib(?:e)?|bleiben sie) (?:bitte )?(?:bei|beim|auf)\b",
            r"(?:bitte,? )?(?:hör(?:e)?|hören sie) (?:bitte )?auf(?:,| zu\b| mit\b)",
            rf"(?:du|sie) (?:sollst|sollen|sollte(?:st|n)|musst|müssen|darfst|dürfen|kannst|können) (?:bitte )?(?:\w+ ){{0,2}}?(?:{_DE_EVER}"
            r"|nicht|nichts|nur|keine?[nmrs]?|wieder|jetzt wieder)\b",
            r"(?:jedes ?mal,? wenn|immer,? wenn|wann immer|sobald|bevor|wenn) (?:du|sie|ich (?:frage|sage|schreibe|schicke|tippe))\b"
            rf"[^,]{{1,120}}, (?:dann )?(?:bitte|{_DE_VERB}|sollst|musst|darfst)\b",
            r"vor jede[mr] [^.,]{2,60},? (?:bitte |erst |immer )*\w+",
            r"(?:kein(?:e[nmrs]?)?|nichts|niemand) [^.]{2,120}\bohne (?:meine?|vorherige|ausdrückliche|rück(?:frage|sprache)|zu fragen"
            r"|mich zu fragen)\b",
            r"(?:vergiss|vergessen sie|ignoriere|streiche?) (?:bitte )?(?:was ich|das, was ich|alles, was ich|, was ich|die (?:regel"
            r"|anweisung|vorgabe)|meine (?:regel|anweisung|vorgabe|bitte))",
            r"es ist (?:mir )?(?:sehr )?wichtig, dass (?:du|sie)\b",
            r"(?:neue |wichtige |meine |eine |goldene |weitere |feste )*(?:regel|vorgabe)n?(?: \d+)?(?: ist|:| lautet)\s+\S",
            r"in diesem (?:projekt|repo(?:sitory)?|team|chat|gespräch),? (?:bitte |gilt|verwenden wir|nutzen wir|schreiben wir|immer"
            r"|nie|niemals|nur|keine)\b",
            r"(?:alle|jede[rs]?) (?:deine |ihre )?(?:antwort(?:en)?|nachricht(?:en)?|kommentare?|commits?|commit-\w+|datei(?:en)?|funktion(?:en)?|daten?|datum|tests?|e-?mails?|änderung(?:en)?|zeilen?|buchung(?:en)?|namen?|betr[aä]ge?|preise?)\b[\wäöüß -]{0,60} (?:muss|müssen|soll|sollen|sollten|sollte)\b[^.]{1,120}\b(?:sein|werden|haben|enthalten"
            r"|beginnen|stehen|enden|folgen|bestehen)\b",
            r"deine (?:antwort(?:en)?|nachrichten|kommentare|commits?|code|ausgaben?|ton) (?:muss|müssen|soll|sollen|sollten)\b",
            r"(?:bitte,? )?(?:keine?n?|nur noch|nur) (?:emojis?|anglizismen|floskeln|tabellen|aufzählungen|semikolons?|abkürzungen"
            r"|kommentare|entschuldigungen|markdown|fachbegriffe|smileys)\b",
            r"(?:bitte,? )?(?:antworte|schreib(?:e)?|sprich|rede|antworten sie|schreiben sie|sprechen sie)(?: mir| mit mir| bitte| nur)*"
            r" (?:auf|in) (?:\w+em )?(?:deutsch|englisch|französisch|spanisch|italienisch|portugiesisch|chinesisch|japanisch|stichpunkten"
            r"|ganzen sätzen|reimen|markdown|prosa)\b",
        )
    ),
    holds=rf"\b(?:(?>{_DE_FUTURE})|bis ich etwas anderes sage)[.!,;]*(?: bitte[.!]*)?$|, (?:und |aber )?bitte (?:immer|nie|niemals)\b",
    tale=rf"{_DE_OTHERS}|was|wie|wo|wann|warum|wer|da|dann|heute|gestern|hier|so|ist|war|hat|habe|bin|kann|mal sehen|\w+ (?:ich|wir|er|es|man)\b",
    asks=(
        rf"(?:kannst|könntest|würdest|magst) du [^?]{{0,200}}?\b(?:{_DE_EVER}|aufhören|nennen|bitte keine?[nmrs]?|bitte nicht)\b"
        rf"|(?:können|könnten|würden) sie [^?]{{0,200}}?\b(?:{_DE_EVER}|aufhören|nennen|bitte keine?[nmrs]?|bitte nicht)\b"
    ),
    heads=rf"(?:[^:]{{0,60}}\b(?:regeln|vorgaben|vorlieben|konventionen|grundsätze)(?: für [^:]{{1,60}})?|(?:bitte )?(?:immer|nie(?:mals)?|merk(?:e)? dir|beachte|denk(?:e)? daran|vermeide)(?: [^:]{{1,40}})?|(?:bitte )?(?>{_DE_FUTURE})[^:]{{0,60}}):$",
)

_FR_FUTURE = (
    r"(?:à partir (?:de maintenant|d'aujourd'hui|d'ici|de ce moment)|dorénavant|désormais|à l'avenir|pour la suite|dès maintenant"
    r"|pour le reste d[eu] [^,.]{2,40}|jusqu'à nouvel ordre)"
)
_FR_PLEASE = r"(?:s'il (?:te|vous) pla[iî]t,? |stp,? |svp,? |merci de |veuillez |prière de )"
_FR_SUBJECT = (
    r"(?:je|j'\w+|tu|il|elle|on|nous|vous|ils|elles|c'\w+|ça|cela|le|la|les|l'\w+|un|une|des|mon|ma|mes|son|sa|ses|notre|nos"
    r"|leur|leurs|ce|cette|ces|y|qui|que|quand|comment|pourquoi|où|est|ai|as|a|était|presque|comme|pas|toujours|jamais)\b"
)
_FR_WISH = r"(?:je|j') ?(?:veux|voudrais|aimerais|préfère|préférerais|souhaite|souhaiterais|demande)"

FRENCH = Language(
    opens=_opening(
        r"ok|d'accord|merci(?: beaucoup)?|et|mais|donc|au fait|aussi|oui|non|alors|autre chose|encore une chose|bonjour|bien|important"
    ),
    begins="|".join(
        (
            rf"{_FR_PLEASE}?(?>{_FR_FUTURE}),?\s+(?!(?:je|j'|il|elle|on|nous|ils|elles|c'|ça|mon|ma|mes)(?!\s?(?:veux|voudrais|aimerais"
            rf"|préfère|souhaite))|le|la|tout va)",
            rf"{_FR_PLEASE}?(?!{_FR_SUBJECT})[^\W\d_]+(?:-(?:moi|nous|le|la|les|lui|leur|y|en|toi|vous))*,? (?:{_FR_PLEASE})?"
            r"(?:[^\W\d_]+ ){0,1}(?:toujours|systématiquement|uniquement|exclusivement|seulement|dorénavant|désormais)\b",
            rf"{_FR_PLEASE}?(?:toujours|jamais|ne jamais|ne plus|ne pas|systématiquement|en aucun cas|sous aucun prétexte)\s+(?:me |te"
            r" |se |s'|m'|l'|le |la |les |y |en |en |de |d'|de jamais )?(?!aussi|un\b|une\b|là\b|vu\b|eu\b|été\b|mon\b)[^\W\d_]+(?:er|ir"
            r"|re|oir)?\b(?=[^.!?]{3})",
            rf"{_FR_PLEASE}?n(?:e |')(?!(?:t'inqui|vous inqui|hésit|t'en fais|vous en fait|te fais pas|bouge)[\w' ]*)[^.!?]{{1,60}}?"
            r"\b(?:jamais|plus|pas|rien|aucune?|que)\b",
            rf"{_FR_PLEASE}?(?:souviens-toi|souvenez-vous|rappelle-toi|rappelez-vous|retiens|retenez|garde(?:z)? (?:bien )?(?:en tête|à"
            r" l'esprit|en mémoire)|note(?:z)? (?:bien )?(?:que|:)|n'oublie(?:z)? (?:pas|jamais)|sache(?:z)? que|pense(?:z)? (?:bien )?"
            r"(?:toujours )?à)\b(?! (?:ce jour|cette fois|quand|du jour|moi))",
            r"(?:je|j') ?(?:préfère|préfèrerais|préférerais|aimerais mieux)\b",
            r"(?:j'aimerais|je veux|je voudrais|je souhaite|je souhaiterais|je demande|j'exige|je tiens à ce) (?:bien )?qu(?:e|') ?(?:tu|vous|tes"
            r"|vos|toutes?|tous|chaque)\b",
            r"je ne (?:veux|souhaite) (?:pas|plus|jamais|surtout pas) (?:que|d[e']|voir)",
            rf"{_FR_PLEASE}?(?:appelle-moi|appelez-moi|tutoie-moi|tutoyez-moi|vouvoie-moi|vouvoyez-moi|(?:tu|vous) (?:peux|pouvez) (?:m'appeler|me tutoyer)"
            r"|on (?:peut|pourrait) se tutoyer)\b(?! (?:quand|si|demain|plus tard|dès|ce soir|à))",
            rf"{_FR_PLEASE}?(?:continue[zr]?(?: à| d[e']| toujours)|arrête[zr]? (?:de|d'|avec)|cesse[zr]? (?:de|d')|évite[zr]? |reste[zr]? (?:bref"
            r"|concis|poli|formel|en |sur |au |dans )|garde[zr]? (?:le|la|les|un|une|tes|vos) |limite[zr]?(?:-toi|-vous)? |tiens-t'en|tenez-vous-en"
            r"|abstiens-toi|abstenez-vous)",
            r"(?:tu|vous) (?:ne )?(?:dois|devez|devras|devrez|devrais|devriez|peux|pouvez) (?:toujours|jamais|plus jamais|plus|pas"
            r"|uniquement|seulement|à nouveau|de nouveau|désormais|maintenant)\b",
            r"(?:chaque fois|à chaque fois|toutes les fois|lorsque|quand) (?:qu(?:e |'))?(?:tu|vous|je (?:dis|écris|demande|tape|t'envoie)) ?[^,]{1,120}"
            rf", (?:{_FR_PLEASE})?(?!(?:je|j'|il|elle|on|nous|ils|c'|ça|le|la|les|mon|ma)\b)",
            r"avant (?:de |d'|chaque |tout |toute )[^,.]{2,100}, (?!(?:je|j'|il|elle|on|nous|ils|c'|ça|le|la|les|mon|ma)\b)",
            r"(?:il est )?(?:interdit|interdiction|défense) (?:de |d')|il (?:ne )?faut (?:toujours|jamais|plus|pas|absolument)\b",
            r"(?:rien|aucune?|personne|pas de|pas d') ?[^.]{2,120}\bsans (?:mon|ma|me demander|m'en parler|autorisation|accord|validation)\b",
            r"(?:oublie|oubliez|ignore|ignorez|annule|annulez) (?:ce que j'ai (?:dit|demandé)|tout ce que j'ai|(?:la|ma|mes|les|cette) (?:règle|consigne"
            r"|instruction|préférence|demande))",
            r"c'est (?:très )?important (?:pour moi )?que (?:tu|vous)\b",
            r"(?:nouvelle |ma |une |autre |la )*(?:règle|consigne)s?(?: \d+| d'or| importante)?(?: est| :|:)\s+\S",
            r"dans (?:ce (?:projet|dépôt|repo|code|chat)|cette (?:équipe|conversation|discussion)),? (?:on |nous )?(?:utilis|écri|toujours|jamais|pas de)",
            r"(?:tous|toutes|chaque) (?:les )?(?:tes |vos )?(?:réponses?|messages?|commentaires?|commits?|fichiers?|fonctions?|dates?|tests?|e-?mails?|courriels?|modifications?|lignes?|réservations?|noms?|montants?|prix)\b[^.]{0,60} (?:doi(?:t|vent)|devr(?:a|ont|ait|aient))\b",
            r"(?:tes|vos|ta|votre) (?:réponses?|messages?|commentaires?|commits?|ton|code) (?:doi(?:t|vent)|devr(?:a|ont|ait|aient))\b",
            r"(?:s'il (?:te|vous) pla[iî]t,? )?(?:plus |pas )d[e'] ?(?:emojis?|émojis?|émoticônes?|anglicismes|listes|tableaux|jargon|excuses|markdown"
            r"|commentaires|points-virgules|formules de politesse|abréviations)\b",
            r"(?:réponds|répondez|écris|écrivez|parle|parlez)(?:-moi)?(?: s'il (?:te|vous) pla[iî]t,?)? (?:en|seulement en|uniquement en) (?:\w+ )?(?:français"
            r"|anglais|allemand|espagnol|italien|portugais|chinois|japonais|phrases|une phrase|markdown|prose|vers)\b",
        )
    ),
    holds=rf"\b(?>{_FR_FUTURE})[.!,;]*(?: (?:s'il (?:te|vous) pla[iî]t|stp|svp|merci)[.!]*)?\s*$|, (?:et |mais )?(?:s'il (?:te|vous) pla[iî]t,? )(?:ne |toujours)",
    tale=rf"(?!{_FR_WISH})(?:je|j'|il|elle|on|nous|ils|elles|c'|ça|le|la|les|un|une|mon|ma|mes|son|sa|ce|cette|qui|quand|comme)\b",
    asks=(
        r"(?:(?:peux|pourrais|voudrais)-tu|(?:pouvez|pourriez|voudriez)-vous|(?:tu|vous) (?:peux|pourrais|pouvez|pourriez)|est-ce que (?:tu|vous)"
        r" (?:peux|pourrais|pouvez|pourriez)) [^?]{0,160}?\b(?:toujours|ne (?:plus|jamais|pas)|arrêter|éviter|désormais|dorénavant|à l'avenir|à partir"
        r" de maintenant|chaque fois|m'appeler|continuer à|me tutoyer|me vouvoyer)\b"
    ),
    heads=rf"(?:[^:]{{0,60}}\b(?:règles|consignes|préférences|conventions)(?: pour [^:]{{1,60}})?|(?:toujours|jamais|ne jamais|retiens|retenez|n'oublie(?:z)? pas|évite[zr]?)(?: [^:]{{1,40}})?|(?>{_FR_FUTURE})[^:]{{0,60}}) ?:$",
)

_ES_FUTURE = (
    r"(?:(?:a partir|desde|de) (?:de )?(?:ahora|hoy|este momento|aquí)(?: en adelante)?|en adelante|en (?:el )?futuro|de ahora en adelante"
    r"|de aquí en adelante|en lo sucesivo|por el resto de (?:la|esta) \w+|hasta nuevo aviso)"
)
_ES_PLEASE = r"(?:por favor,? )"
_IBERIAN_TALE = (
    # After "nunca" and "siempre": what narrates, in Spanish or Portuguese, and orders nothing.
    r"(?:he|has|ha|hemos|han|había|habían|hubo|fue|fui|era|eran|es|son|soy|está|están|estoy|estaba|estuve|tuve|tenía|tengo"
    r"|tiene|creí|voy|va|vamos|iba|nos|se|le|les|me (?!chame|trate|responda|envie|mostre|pergunte|avise|llam|habl|respond|env|avis"
    r"|pregunt)|lo (?:he|había|hubiera)|antes|más|mejor|supe|vi|quise|quiero|puedo|pude|sé|hay|mis?|sus?|el|la|los|las|un|una"
    r"|tan|muy|que|nadie|nada|jamás|tenho|tive|tinha|foi|eram|é|são|sou|estou|estava|estive|esteve|está|vou|vai|ia|mais|pensei"
    r"|quis|posso|sei|há|meus?|minhas?|o|a|os|as|um|uma|tão|muito|ninguém|gosto|bom|boa|houve|havia|ouvi|fico|gust\w+|olvidar\w+"
    r"|imagin[éae]\w*|\w+(?:aba|abas|aban|ía|ían|ió|aron|ieron|amos|emos|imos|ado|ido|ava|avam|ou|eu|iu|ei|aram|eram|iram|é|rá|rán|rão|ría|ria))\b"
)
_ROMANCE_SUBJECT = (
    # What a sentence of Spanish, Portuguese or Italian begins with that has an adverb next and is no order.
    r"(?:yo|él|ella|usted|nosotros|ellos|mis?|sus?|el|la|los|las|un|una|eso|esto|casi|como|que|es|son|está|voy|va|me|te|se|nos|le"
    r"|lo|ha|he|no|sí|ya|hoy|ayer|aquí|allí|mamá|papá|quiero|tengo|soy|gente|todos?|estoy|desde|había|era|fue|estar[ée]|así|pero|y|o"
    r"|eu|ele|ela|você|nós|eles|meus?|minhas?|seu|sua|a|os|as|um|uma|isso|isto|quase|é|são|vou|vai|há|não|sim|já|hoje|ontem|aqui|lá"
    r"|quero|tenho|sou|tudo|estou|foi|para|pra|nem|mamãe|papai|serei|estarei|mas|e|io|lui|lei|noi|loro|voi|mio|mia|miei|suo|il|i|gli"
    r"|uno|questo|quello|quasi|come|che|sono|sta|vado|mi|ti|si|ci|ho|non|sì|già|oggi|ieri|qui|lì|mamma|voglio|tutt[oie]|sto|da|per|amo"
    r"|sarò|penso|spero|ne|lavoro|hai|abbiamo|hanno|sei|siamo|c'è|faccio|dico|dice|fa|quando|cuando|esto|amor|sempre|siempre|creo"
    r"|acho|credo|também|también|anche|casi|gracias|obrigad[oa]|grazie|feliz|con|com|de|en|em|por|in|su)\b"
)
_ES_NEGATED = (
    r"(?:use[ns]?|haga[sn]?|cambie[sn]?|toque[sn]?|modifique[sn]?|borre[sn]?|elimine[sn]?|añada[sn]?|agregue[sn]?|escriba[sn]?|suba[sn]?|envíe[sn]?|mande[sn]?"
    r"|responda[sn]?|conteste[sn]?|reserve[sn]?|cancele[sn]?|mencione[sn]?|incluya[sn]?|repita[sn]?|invente[sn]?|instale[sn]?|ejecute[sn]?|publique[sn]?"
    r"|comparta[sn]?|traduzca[sn]?|explique[sn]?|ponga[sn]?|digas?|diga[sn]?|llame[sn]?|pregunte[sn]?|crees (?:archivos|ficheros|ramas)|cree[n]? |abra[sn]?|cierre[sn]?"
    r"|confirme[sn]?|compre[sn]?|pague[sn]?|asuma[sn]?|suponga[sn]?|pidas?|utilice[sn]?|empiece[sn]?|termine[sn]?|deje[sn]?|des|dé|muestre[sn]?|hable[sn]?|resuma[sn]?)"
)

SPANISH = Language(
    opens=_opening(
        r"ok|vale|(?:muchas )?gracias|y|pero|además|también|por cierto|sí|bien|otra cosa|una cosa más|importante|hola|bueno"
    ),
    begins="|".join(
        (
            rf"{_ES_PLEASE}?(?>{_ES_FUTURE}),?\s+(?!(?:yo|él|ella|nosotros|ellos|voy|vamos|va|mi|mis|todo va|será|seré|soy|es|estoy|he|tengo)\b)",
            rf"{_ES_PLEASE}?(?:siempre|nunca|jamás|nunca jamás|bajo ninguna circunstancia|en ningún caso|bajo ningún concepto)\s+(?!{_IBERIAN_TALE})[^\W\d_]",
            rf"{_ES_PLEASE}?no (?:me |te |lo |la |los |las |se |les |le )?[^\W\d_]+(?: [^\W\d_]+)? (?:nunca|jamás|más)\b",
            rf"{_ES_PLEASE}?no (?:me |lo |la |los |las |se |les |le )?{_ES_NEGATED}\b",
            rf"{_ES_PLEASE}?(?!{_ROMANCE_SUBJECT})[^\W\d_]+(?:me|nos|lo|la|los|las|te|se)?"
            rf" (?:por favor )?(?:siempre|únicamente|exclusivamente|solamente|solo|sólo)\b(?! que\b)",
            rf"{_ES_PLEASE}?(?:recuerda|recuerde|acuérdate|acuérdese|ten en cuenta|ten presente|tenga en cuenta|tenga presente|no (?:te )?olvides|no (?:se )?olvide|toma nota"
            rf"|tome nota|apunta|anota|memoriza)\b(?:[,:]| que| de que| siempre| nunca| no| mi| de (?!aquel|cuando|ese))(?! (?:día|momento|vez|eres|puedes))",
            r"(?:yo )?(?:prefiero|preferiría)\b",
            r"(?:quiero|quisiera|me gustaría|necesito|espero|te pido|le pido|exijo|pido) que (?:siempre |nunca |no |me |todas? |todos |las? |los? |tus? |sus? |solo |sólo |usted |en |cada )+\w",
            r"no quiero (?:que|ver|más)\b",
            r"(?:por favor,? )?(?:llámame|llámeme|(?:me )?puedes? (?:llamarme|llamar)|tutéame|tutéeme|háblame de|hábleme de|trátame de|tráteme de|dirígete a mí|diríjase a mí)\b"
            r"(?! (?:cuando|si|mañana|luego|después|más tarde|esta|al\b))",
            rf"{_ES_PLEASE}?(?:sigue|siga|continúa|continúe) (?:\w+ndo|con|sin)\b|{_ES_PLEASE}?(?:deja|deje|para|pare) de \w+|{_ES_PLEASE}?(?:evita|evite|mantén|mantenga|limítate|limítese|abstente)\b(?! la calma)",
            r"(?:tú |usted )?(?:debes?|tienes? que|deberías?|has de) (?:siempre|nunca|jamás|solo|únicamente)\b|(?:siempre|nunca) (?:debes?|tienes? que)\b|no (?:debes|debe|puedes|puede) (?:nunca |jamás |volver a )?"
            r"(?!ser\b|imaginar|creer|negar)\w+r\b",
            r"(?:ya )?puedes? (?:volver a|de nuevo|otra vez|ya)\b|ya no (?:hace falta|es necesario|tienes? que|necesitas?)\b",
            r"(?:cada vez|siempre) que (?:te |yo |me |tú )?(?:diga|escriba|pida|pregunte|hagas|escribas|uses|cambies|edites|crees|modifiques|respondas|envíes|tengas|edite|cambie)\b[^,]{0,120}, ?(?!(?:yo|él|ella|me|se|nos)\b)",
            r"antes de (?:cada|cualquier|hacer|cambiar|borrar|enviar|confirmar|reservar|modificar|subir)\b[^,.]{0,100}, (?!(?:yo|él|ella|me|se|nos|el|la)\b)",
            r"(?:nada|ningún|ninguna|nadie|no) [^.]{2,120}\bsin (?:mi|preguntarme|consultarme|antes preguntar|confirmación|autorización|avisarme)\b",
            r"(?:por favor,? )?(?:olvida|olvide|ignora|ignore|cancela|anula) (?:lo que (?:te |le )?(?:dije|he dicho|pedí)|todo lo que|(?:la|mi|mis|las|esa|esta) (?:regla|instrucci|preferencia|norma|petición))",
            r"es (?:muy )?importante que (?:siempre |nunca |no |me )?\w+",
            r"(?:nueva |mi |una |otra |la )*(?:regla|norma)s?(?: \d+| de oro| importante)?(?: es|:)\s+\S",
            r"en (?:(?:este|nuestro) (?:proyecto|repositorio|repo|equipo|chat)|esta conversación),? (?:usamos|siempre|nunca|no |usa|escribimos)",
            r"(?:todos|todas|cada) (?:l[oa]s )?(?:tus |sus )?(?:respuestas?|mensajes?|comentarios?|commits?|archivos?|funci[oó]n(?:es)?|fechas?|pruebas?|correos?|cambios?|líneas?|reservas?|nombres?|importes?|precios?)\b[^.]{0,60} (?:debe|deben|tiene que|tienen que|deberá|deberán)\b",
            r"(?:tus|sus|tu|su) (?:respuestas?|mensajes?|comentarios?|commits?|tono|código) (?:debe|deben|tiene que|tienen que)\b",
            r"(?:por favor,? )?(?:sin|nada de|no más|ni) (?:emojis?|emoticonos|anglicismos|listas|tablas|jerga|disculpas|markdown|comentarios|puntos y coma|abreviaturas)\b",
            r"(?:responde|respóndeme|responda|respóndame|escribe|escríbeme|escriba|habla|háblame|hable|contesta|contéstame)(?: por favor)?(?: solo| sólo)? en (?:español|inglés|francés|alemán|italiano|portugués|chino|japonés"
            r"|una (?:frase|línea)|markdown|prosa|verso)\b",
        )
    ),
    holds=rf"\b(?>{_ES_FUTURE})[.!,;]*(?: (?:por favor|gracias)[.!]*)?$|, (?:y |pero )?por favor,? (?:siempre|nunca)\b",
    tale=r"(?:yo|él|ella|nosotros|ellos|mi|mis|el|la|los|las|un|una|eso|esto|es|son|voy|vamos|va|me|se|nos|he|ha|tengo|estoy|cuando|como|creo|todo|espero(?! que))\b",
    asks=(
        r"(?:me )?(?:puedes|podrías|puede|podría|podés)(?:me)? [^?]{0,160}?\b(?:siempre|nunca|dejar de|evitar|a partir de ahora|de ahora en adelante|en adelante|cada vez|seguir|no (?:usar|escribir|hacer|volver)"
        r"|llamarme|tutearme)\b"
    ),
    heads=rf"(?:[^:]{{0,60}}\b(?:reglas|normas|preferencias|convenciones)(?: para [^:]{{1,60}})?|(?:siempre|nunca|jamás|recuerda|recuerde|ten en cuenta|evita|evite)(?: [^:]{{1,40}})?|(?>{_ES_FUTURE})[^:]{{0,60}}):$",
)

_PT_FUTURE = (
    r"(?:a partir de (?:agora|hoje)|(?:de|daqui|de hoje) (?:agora )?(?:em|para a?|pra) (?:diante|frente)|daqui (?:em diante|para a frente|pra frente)|de agora em diante|doravante|no futuro"
    r"|pelo resto d[ae] \w+|até (?:segunda ordem|aviso em contrário))"
)
_PT_PLEASE = r"(?:por favor,? |se faz favor,? )"
_PT_NEGATED = (
    r"(?:us(?:e|es|em)|faça[sm]?|mud(?:e|es|em)|alter(?:e|es|em)|toqu(?:e|es)|mex(?:a|as)|modifiqu(?:e|es)|apagu(?:e|es)|exclu(?:a|as)|remov(?:a|as)|adicion(?:e|es)|acrescent(?:e|es)|escrev(?:a|as)|envi(?:e|es)|mand(?:e|es)"
    r"|respond(?:a|as)|reserv(?:e|es)|cancel(?:e|es)|mencion(?:e|es)|inclu(?:a|as)|repit(?:a|as)|invent(?:e|es)|instal(?:e|es)|execut(?:e|es)|publiqu(?:e|es)|compartilh(?:e|es)|partilh(?:e|es)|traduz(?:a|as)|expliqu(?:e|es)"
    r"|ponh(?:a|as)|coloqu(?:e|es)|dig(?:a|as)|cham(?:e|es)|pergunt(?:e|es)|cri(?:e|es)|abr(?:a|as)|fech(?:e|es)|confirm(?:e|es)|compr(?:e|es)|pagu(?:e|es)|assum(?:a|as)|supon?h(?:a|as)|peç(?:a|as)|utiliz(?:e|es)|comec(?:e|es)"
    r"|deix(?:e|es)|dê|dês|mostr(?:e|es)|fal(?:e|es)|resum(?:a|as)|sub(?:a|as))"
)

PORTUGUESE = Language(
    opens=_opening(
        r"ok|(?:muito )?obrigad[oa]|e|mas|também|aliás|sim|não|bem|outra coisa|mais uma coisa|importante|olá|certo"
    ),
    begins="|".join(
        (
            rf"{_PT_PLEASE}?(?>{_PT_FUTURE}),?\s+(?!(?:eu (?!quero|prefiro|gostaria)|ele|ela|nós|eles|vou|vamos|vai|meu|minha|tudo vai|será|serei|sou|é|estou|tenho)\b)",
            rf"{_PT_PLEASE}?(?:sempre|nunca|jamais|em hipótese alguma|de forma alguma|em caso algum|em nenhuma circunstância)\s+(?!{_IBERIAN_TALE})[^\W\d_]",
            rf"{_PT_PLEASE}?não (?:me |te |o |a |os |as |se |lhe )?[^\W\d_]+(?: [^\W\d_]+)? (?:nunca|jamais|mais)\b",
            rf"{_PT_PLEASE}?não (?:me |o |a |os |as |se |lhe )?{_PT_NEGATED}\b",
            rf"{_PT_PLEASE}?(?!{_ROMANCE_SUBJECT})[^\W\d_]+(?:-(?:me|nos|o|a|os|as|te|se|lhe))? (?:por favor )?(?:sempre|somente|apenas|exclusivamente|só)\b(?! que\b)",
            rf"{_PT_PLEASE}?(?:lembre-se|lembra-te|lembre|lembra|não (?:se )?esqueça|não te esqueças|tenha em mente|tem em mente|tenha em conta|tem em conta|anote|anota|guarde|memorize)\b(?:[,:]| que| de que| sempre| nunca| de | não)"
            rf"(?! (?:quando|aquele|você é|dia))",
            r"(?:eu )?(?:prefiro|preferiria|preferia)\b",
            r"(?:eu )?(?:quero|gostaria|queria|preciso|espero|peço|exijo) que (?:sempre |nunca |não |me |todas? |todos |as? |os? |tu |você |vocês |suas? |seus? |tuas? |teus? |só |cada |apenas )+\w",
            r"(?:eu )?não quero (?:que|ver|mais)\b",
            rf"{_PT_PLEASE}?(?:me chame|me chama|chame-me|chama-me|(?:você )?pode(?:s)? (?:me chamar|chamar-me)|me trate|trate-me|trata-me|dirija-se a mim)\b(?! (?:quando|se|amanhã|depois|mais tarde|para))",
            rf"{_PT_PLEASE}?(?:continue|continua) (?:\w+ndo|a \w+r|com|sem)\b|{_PT_PLEASE}?(?:pare|para|deixe|deixa) de \w+r\b|{_PT_PLEASE}?(?:evite|evita|mantenha|mantém|limite-se|abstenha-se)\b(?! a calma)",
            r"(?:você |tu )?(?:deve|deves|tem que|tens de|tem de|deveria) (?:sempre|nunca|jamais|só|apenas|somente)\b|(?:você )?(?:sempre|nunca|jamais) (?:deve|deves|pode)\b|(?:você )?não (?:deve|deves|pode|podes) (?:nunca |jamais |mais |voltar a )?(?!ser\b|imaginar)\w+r\b",
            r"(?:você )?(?:já )?(?:pode|podes) (?:voltar a|de novo|novamente|já|agora)\b|(?:você )?não precisa(?:s)? mais\b",
            r"(?:sempre|toda vez|cada vez|todas as vezes) que (?:você |eu |tu |me )?(?:disser|escrever|pedir|perguntar|fizer|usar|mudar|editar|criar|modificar|responder|enviar|tiver|alterar)\w*\b[^,]{0,120}, ?(?!(?:eu|ele|ela|me|se|nos)\b)",
            r"antes de (?:cada|qualquer|fazer|mudar|apagar|enviar|confirmar|reservar|modificar|alterar|excluir)\b[^,.]{0,100}, (?!(?:eu|ele|ela|me|se|nos|o|a)\b)",
            r"(?:nada|nenhum|nenhuma|ninguém|não) [^.]{2,120}\bsem (?:a minha|o meu|minha|meu|me perguntar|perguntar|me consultar|confirmação|autorização|me avisar)\b",
            rf"{_PT_PLEASE}?(?:esqueça|esquece|ignore|ignora|cancele|anule) (?:o que (?:eu )?(?:disse|pedi|falei)|tudo o que|(?:a|minha|as|essa|esta) (?:minha )?(?:regra|instruç|preferência|norma|pedido))",
            r"é (?:muito )?importante que (?:você |sempre |nunca |não |me )+\w+",
            r"(?:nova |minha |uma |outra |a )*(?:regra|norma)s?(?: \d+| de ouro| importante)?(?: é|:)\s+\S",
            r"(?:(?:neste|nesse|no nosso) (?:projeto|repositório|repo|time|chat)|nesta conversa),? (?:usamos|sempre|nunca|não |use|escrevemos)",
            r"(?:todos|todas|cada) (?:[oa]s )?(?:suas |seus |tuas |teus )?(?:respostas?|mensagens?|mensagem|comentários?|commits?|arquivos?|ficheiros?|fun(?:ção|ções)|datas?|testes?|e-?mails?|mudanças?|linhas?|reservas?|nomes?|valores|preços?)\b[^.]{0,60} (?:deve|devem|tem que|têm que|deverá|deverão|precisa|precisam)\b",
            r"(?:suas|seus|sua|seu|tuas|as suas|as tuas) (?:respostas?|mensagens?|comentários?|commits?|tom|código) (?:deve|devem|tem que|têm que)\b",
            rf"{_PT_PLEASE}?(?:sem|nada de|chega de|nem) (?:emojis?|emoticons|anglicismos|listas|tabelas|jargão|desculpas|markdown|comentários|ponto e vírgula|abreviações|abreviaturas)\b",
            r"(?:responda|responde|me responda|responda-me|escreva|escreve|fale|fala|me escreva)(?: por favor)?(?: só| apenas)? em (?:português|inglês|francês|alemão|italiano|espanhol|chinês|japonês|uma (?:frase|linha)|markdown|prosa|verso)\b",
        )
    ),
    holds=rf"\b(?>{_PT_FUTURE})[.!,;]*(?: (?:por favor|obrigad[oa])[.!]*)?$|, (?:e |mas )?por favor,? (?:sempre|nunca)\b",
    tale=r"(?:eu (?!quero|prefiro|gostaria)|ele|ela|nós|eles|meu|minha|o|a|os|as|um|uma|isso|isto|é|são|vou|vamos|vai|me|se|nos|tenho|estou|quando|como|acho|tudo)\b",
    asks=(
        r"(?:você |tu )?(?:pode|poderia|podes|podias|consegue)(?:-me)? [^?]{0,160}?\b(?:sempre|nunca|parar de|deixar de|evitar|a partir de agora|de agora em diante|daqui para a frente|cada vez|toda vez|continuar|passar a|não (?:usar|escrever|fazer|voltar)"
        r"|me chamar|chamar-me)\b"
    ),
    heads=rf"(?:[^:]{{0,60}}\b(?:regras|normas|preferências|convenções)(?: para [^:]{{1,60}})?|(?:sempre|nunca|jamais|lembre-se|lembra-te|tenha em mente|evite|evita)(?: [^:]{{1,40}})?|(?>{_PT_FUTURE})[^:]{{0,60}}):$",
)

_IT_FUTURE = r"(?:d'ora in (?:poi|avanti)|da ora in (?:poi|avanti)|da adesso in (?:poi|avanti)|da (?:questo momento|oggi)(?: in (?:poi|avanti))?|in futuro|per il futuro|per il resto d[^ ]+ \w+|fino a nuovo ordine)"
_IT_PLEASE = r"(?:per favore,? |per piacere,? |ti prego,? |la prego,? )"
_IT_INFINITIVE = r"[^\W\d_]+(?:are|ere|ire|rre|r(?:mi|ti|ci|lo|la|li|le|ne|gli|melo|mela)|rsi)"

ITALIAN = Language(
    opens=_opening(
        r"ok|(?:molte )?grazie|e|ma|inoltre|anche|sì|un'altra cosa|ancora una cosa|a proposito|ciao|bene|importante"
    ),
    begins="|".join(
        (
            rf"{_IT_PLEASE}?(?>{_IT_FUTURE}),?\s+(?!(?:io|lui|lei (?=non|è|ha)|noi|loro|vado|andiamo|va|mio|mia|tutto andrà|sarà|sarò|sono|è|sto|ho)\b)",
            rf"{_IT_PLEASE}?(?:sempre|mai|mai più|in nessun caso|per nessun motivo|in nessuna circostanza)\s+(?:e comunque )?{_IT_INFINITIVE}\b",
            rf"{_IT_PLEASE}?non (?:mi |ti |lo |la |li |le |ci |ne |si |me lo |te lo )?(?!ti preoccupare|preoccupart|preoccupare|esitare|mollare|vedere l'ora|esagerare|scherzare)(?:{_IT_INFINITIVE})\b(?! (?:preoccup|d'animo))",
            rf"{_IT_PLEASE}?non (?:mi |lo |la |li |le |ci |si )?(?:usi|scriva|faccia|modifichi|cancelli|tocchi|cambi|invii|mandi|risponda|prenoti|aggiunga|ripeta|inventi|includa|dica|chieda|condivida|pubblichi)\b",
            rf"{_IT_PLEASE}?(?!{_ROMANCE_SUBJECT})[^\W\d_]+(?:mi|ci|lo|la|li|le|ti)? (?:per favore )?(?:sempre|solo|soltanto|esclusivamente|unicamente)\b(?! (?:che|bello|più)\b)",
            rf"{_IT_PLEASE}?(?:ricorda|ricordati|si ricordi|ricordatevi|ricordi|tieni (?:presente|a mente|conto)|tenga (?:presente|a mente|conto)|non (?:ti )?dimenticare|non (?:ti )?scordare|non si dimentichi|non dimentichi|prendi nota|prenda nota"
            rf"|annota|memorizza)\b(?:[,:]| che| di | sempre| mai| non)(?! (?:quando|quella volta|quel|sei))",
            r"(?:io )?(?:preferisco|preferirei)\b",
            r"(?:io )?(?:voglio|vorrei|desidero|preferirei|mi aspetto|chiedo|ho bisogno|mi piacerebbe|esigo) che (?:tu|lei|le|i|tutt[ei]|ogni|mi|non|d'ora|usi|la|il)\b",
            r"(?:io )?non voglio (?:che|vedere|più|mai)\b",
            rf"{_IT_PLEASE}?(?:chiamami|mi chiami|puoi chiamarmi|può chiamarmi|mi puoi chiamare|dammi del|mi dia del|rivolgiti a me|si rivolga a me)\b(?! (?:quando|se|domani|dopo|più tardi|appena))",
            rf"{_IT_PLEASE}?(?:continua|continui) (?:a|ad|con|senza)\b|{_IT_PLEASE}?(?:smetti|smettila|smetta|la smetta|finiscila) (?:di|con)\b|{_IT_PLEASE}?(?:evita|eviti|mantieni|mantenga|limitati|si limiti|attieniti|si attenga|astieniti)\b(?! la calma)",
            r"(?:tu |lei )?(?:devi|deve|dovresti|dovrebbe) (?:sempre|solo|soltanto|assolutamente)\b|(?:tu |lei )?non (?:devi|deve|puoi|può|dovresti) (?:mai |più )?(?!essere\b|immaginare|mancare)\w+(?:re|r\w{2})\b",
            r"(?:adesso |ora )?(?:puoi|può) (?:di nuovo|tornare a|ricominciare a|nuovamente|adesso|ora)\b|non (?:serve|occorre|c'è) più (?:bisogno )?|non devi più\b",
            r"(?:ogni volta|tutte le volte|ogniqualvolta|quando) (?:che )?(?:ti |io |mi |tu )?(?:dico|scrivo|chiedo|mando|fai|scrivi|usi|cambi|modifichi|crei|rispondi|invii|non sei sicuro|hai dubbi)\b[^,]{0,120}, ?(?!(?:io|lui|lei|mi|si|ci)\b)",
            r"prima di (?:ogni|qualsiasi|fare|modificare|cancellare|inviare|confermare|prenotare|cambiare|eseguire)\b[^,.]{0,100}, (?!(?:io|lui|lei|mi|si|ci|il|la)\b)",
            r"(?:niente|nulla|nessun\w*|non) [^.]{2,120}\bsenza (?:la mia|il mio|chiedermi|chiedere|consultarmi|conferma|autorizzazione|avvisarmi)\b",
            rf"{_IT_PLEASE}?(?:dimentica|dimentichi|ignora|ignori|annulla) (?:quello che|ciò che|quanto|tutto quello|(?:la|le|quella|questa) (?:mia )?(?:regol|istruzion|preferenz|norma|richiest))",
            r"è (?:molto )?importante (?:per me )?che (?:tu|lei|non|mi)\b",
            r"(?:nuova |la mia |una |un'altra |altra |la )*regol[ae](?: \d+| d'oro| importante)?(?: è|:)\s+\S",
            r"in (?:questo (?:progetto|repository|repo|team|gruppo|chat)|questa (?:conversazione|chat)),? (?:usiamo|sempre|mai|non |usa|scriviamo)",
            r"(?:tutti|tutte|ogni|ciascun\w*) (?:i |gli |le )?(?:tuoi |tue )?(?:rispost[ae]|messagg\w+|comment[oi]|commit|file|funzion[ei]|dat[ae]|test|e-?mail|modific\w+|rig[ah]e?|prenotazion[ei]|nom[ei]|import[oi]|prezz[oi])\b[^.]{0,60} (?:deve|devono|dovrà|dovranno)\b",
            r"le tue risposte (?:devono|dovrebbero|dovranno)\b|(?:i tuoi|il tuo|la tua|le sue|i suoi) (?:\w+) (?:deve|devono|dovrebbe|dovrebbero)\b",
            rf"{_IT_PLEASE}?(?:niente|basta|senza|nessun[ao]?) (?:più )?(?:emoji|faccine|anglicismi|elenchi|tabelle|gergo|scuse|markdown|commenti|punti e virgola|abbreviazioni)\b",
            r"(?:rispondi|rispondimi|risponda|mi risponda|scrivi|scrivimi|scriva|parla|parlami|parli)(?: per favore)?(?: solo| soltanto)? in (?:italiano|inglese|francese|tedesco|spagnolo|portoghese|cinese|giapponese|una (?:frase|riga)|markdown|prosa|versi)\b",
        )
    ),
    holds=rf"\b(?>{_IT_FUTURE})[.!,;]*(?: (?:per favore|grazie)[.!]*)?$|, (?:e |ma )?per favore,? (?:non|sempre)\b",
    tale=r"(?:io|lui|noi|loro|mio|mia|il|lo|la|i|gli|le|un|una|questo|quello|è|sono|vado|andiamo|va|mi|si|ci|ho|ha|sto|quando|come|penso|credo|tutto)\b",
    asks=(
        r"(?:mi )?(?:puoi|potresti|può|potrebbe)(?: per favore)? [^?]{0,160}?\b(?:sempre|non [^?]{0,30} (?:mai|più)|smettere di|evitare|d'ora in poi|in futuro|da ora in poi|ogni volta|continuare a|chiamarmi|darmi del)\b"
    ),
    heads=rf"(?:[^:]{{0,60}}\b(?:regole|preferenze|convenzioni|linee guida)(?: per [^:]{{1,60}})?|(?:sempre|mai|ricorda|ricordati|tieni (?:presente|a mente)|evita|eviti)(?: [^:]{{1,40}})?|(?>{_IT_FUTURE})[^:]{{0,60}}):$",
)

_ZH_FUTURE = r"(?:从现在(?:开始|起)|从今(?:以后|往后|天(?:开始|起))|从此(?:以后)?|以后|今后|往后|接下来|日后|之后)"
_ZH_WISH = r"(?:希望|想让|想要你|要求|要你|想请|不希望|不想|更喜欢|偏好)"
_ZH_NOT = r"(?:不要|别|不能|不许|不准|不得|不可以|不可|禁止|切勿|请勿|勿|莫)"

CHINESE = Language(
    opens=(
        r"(?:(?:好的?|对了|另外|还有|那么|谢谢(?:你|您)?|嗯|那|顺便(?:说一下)?|重要|注意|提醒(?:一下)?|你好|最后|首先|还有一点|补充一下)"
        r"[，,：:！!、\s]+){0,4}"
    ),
    begins="|".join(
        (
            rf"请?{_ZH_FUTURE}[，,、\s]*(?:请|都|每次|你|您|一律|只|始终|总是|一直|永远|统一|全部|所有|{_ZH_NOT}|用|以|叫我|称呼|回答|回复|务必|必须|改用|称|写|提交|代码|记得|尽量|先)",
            rf"{_ZH_FUTURE}[，,、\s]*我{_ZH_WISH}",
            r"请(?:你|您|大家)?(?:在[^，。]{1,20})?(?:始终|总是|一直|永远|务必|一律|每次|都|只|别|不要|不要再|勿|尽量|记住|记得|记下|牢记|继续(?:用|使用|保持|以)|保持|称呼我|叫我|避免|停止|改用|统一|严格|注意[，,：:]?)",
            rf"(?:始终|务必|一律|永远|一定|绝对|千万|绝|决|任何时候都?|无论如何都?|在任何情况下都?)[，,]?(?:请|要|都要|也)?(?:{_ZH_NOT}|用|使用|以|先|在|保持|要|把|按|按照|称|回答|记住)",
            r"(?:不要|别|不许|不准|不得|禁止|切勿|请勿|严禁)(?:再)?(?:在|把|用|使用|向|给|对|删|改|推|提交|修改|添加|加|写|发|调用|运行|执行|安装|预订|取消|提|重复|编造|猜|假设|翻译|解释|道歉|创建|合并|泄露|透露|分享|未经|直接|擅自|自动|省略|叫我|碰|动|引入|覆盖)",
            r"(?:请|一定要|要|给我|帮我)?(?:记住|记好|牢记|谨记|记着)[，,：:\s]*(?!那|当时|小时候|上次|我们)\S|(?:请|你要|你得)记得(?!那|当时|小时候|上次|我们)|(?:别|不要|千万别)忘(?:了|记)[，,：:]?\S",
            r"我(?:比较|更|更加|还是|一般)?(?:偏好|偏爱|更喜欢|倾向于|更倾向|更希望|宁愿你|宁可你)|我更(?:喜欢|愿意|想)|我(?:还是)?喜欢你用",
            r"我(?:不)?(?:希望|要求|想让|需要|想要|要|想)(?:你|您)(?:以后|每次|始终|总是|一直|永远|都|只|不要|别|能|在|用|把|叫|称呼|保持)|我不(?:希望|想|要)(?:你|您)|我不(?:想|希望|要)(?:再)?(?:看到|见到)",
            r"(?:你|您)?(?:可以|就|请|直接|以后)*(?:叫我|称呼我(?:为)?|喊我|管我叫)(?!起床|的时候|一声|去|来|帮|过去|回|怎)",
            r"(?:你|您)(?:必须|不得|不许|不准|只能|只可以|一定要|绝不能|绝对不能|永远不(?:要|能)|千万(?:别|不要)|切勿|务必|应始终|应当始终|要始终|要一直|每次都?(?:要|必须|得|应该))",
            r"(?:你|您)(?:现在|又|已经)?可以(?:再次|重新|继续|再|又)|(?:你|您)?(?:不用|不必|无需|不需要|可以不)再|现在可以(?:再|重新|继续)?(?:用|推|提交|使用|改)",
            r"每次(?:你|您|我(?:问|说|让|叫|发|提|要求|请)|修改|提交|回答|回复|改|写|更新|推送|部署|预订|调用)[^。！？]{0,60}(?:请|都要|都必须|务必|必须|先|要先|不要|别|都)",
            rf"(?:在)?(?:每次|任何|所有)?[^，。！？我他她]{{2,30}}(?:之前|前|后|之后|时|的时候)[，,]?(?:请|务必|必须|一定要|都要|都必须|要先|先|一律|{_ZH_NOT})",
            r"(?:请)?只(?:用|使用|说|回答|回复|能用|许用|准用|以)|(?:请)?(?:用|以|使用)(?:简体|繁体|简洁的|正式的)?(?:中文|英文|英语|日语|日文|法语|德语|西班牙语|汉语|普通话|要点|列表|Markdown|纯文本|口语|敬语|书面语)[^。！？]{0,6}(?:回答|回复|写|交流|沟通|和我|跟我|解释|说)",
            r"(?:你的)?(?:所有|全部|每个|每条|每次|任何)[^。！？，]{0,20}(?:都)?(?:必须|要|应该|应当|都用|都要|需要|不得|不能|不要)",
            r"(?:回答|回复|答案|代码|注释|提交信息|语气)(?:请|要|必须|务必|一律|应该|应当|都|都要|都用|尽量|控制在|不要|别|保持)",
            r"(?:请)?(?:忘掉|忘记|忽略|取消|作废)(?:我)?(?:之前|刚才|上面|前面|先前|以前)?(?:我)?(?:说|提|定|讲|要求|的(?:规则|要求|指示))",
            r"没有我的(?:允许|同意|批准|确认|许可)|未经我(?:的)?(?:允许|同意|批准|确认|许可)|(?:不要|别)[^。！？]{0,30}除非我",
            r"(?:新|重要|一条|我的|另一条|基本)*(?:规则|规矩|原则)(?:\d+|[一二三])?(?:是|：|:)\s*\S",
            r"在?(?:这个|本|我们(?:的)?)(?:项目|仓库|团队|对话|会话)(?:里|中|内)?[，,]?(?:请|都|我们|一律|始终|不要|只|必须|禁止|统一)",
            r"(?:请)?(?:继续|保持|坚持)(?:用|使用|以)(?!中)\S|(?:请)?停止(?:使用|用|道歉|重复)|(?:请)?避免(?:使用|用)",
        )
    ),
    holds=r"[，,；;：:](?:但|而且|并且|所以|不过)?(?:从现在(?:开始|起)|以后|今后)[，,]?(?:请|都|一律|每次|你|不要|别)|[，,；;](?:请)(?:以后|每次|始终|永远|务必)|除非我(?:说|明确|特别)|直到我(?:说|另)",
    tale=r"(?:我(?!希望|要求|想让|不希望|要你|更|偏好)|他|她|它|我们|他们|她们|咱们|大家|有人|人们)",
    asks=r"(?:你|您)?(?:能不能|能否|可不可以|可以|可否|麻烦你?|能)[^？?]{0,60}(?:以后|每次|始终|一直|总是|永远|都用|不要再?|别再?|从现在|今后|叫我|称呼我|只用)|(?:以后|今后|从现在(?:开始|起))[^？?]{0,60}(?:可以|好)吗",
    heads=r"(?:[^：:]{0,30}(?:规则|规矩|要求|原则|偏好|约定)(?:如下)?|(?:请)?(?:记住|牢记|始终|永远不要|以后|今后|从现在(?:开始|起)|不要|禁止)[^：:]{0,20})[：:]$",
)

_JA_FUTURE = r"(?:これから(?:は|も|先)?|今後(?:は|も|とも)?|以降(?:は|も)?|今から(?:は)?|次(?:回)?から(?:は)?|この先(?:は|も)?|今日から(?:は)?)"
_JA_EVER = r"(?:必ず|常に|いつも|絶対に?|決して|二度と|毎回|ずっと|一切|なるべく|できるだけ|どんな(?:時|場合)でも|いかなる場合も|例外なく)"
_JA_ORDER = (
    r"(?:(?:て|で)(?:おいて|いて)?(?:ください|下さい|くれ|ね|よ|ほしい(?:です)?|欲しい(?:です)?|もらいたい(?:です)?|いただきたい(?:です)?|頂戴|ちょうだい)?|ないで(?:おいて)?(?:ください|下さい|ね|くれ|ほしい(?:です)?|欲しい(?:です)?)?"
    r"|(?:よう)?に(?:して|お願い)\S{0,12}|(?:で|を|に|は)お願い(?:します|いたします|したいです|ね)?|こと|よう(?:に)?|するな|るな|しろ|せよ|なさい|禁止(?:です|します)?|厳禁(?:です)?|は?だめ(?:です)?|ダメ(?:です)?|いけません|なりません|必要があります|べき(?:です)?|べからず)"
)
_JA_END = r"(?:[ねよ]|ので)?[。！!.〜～\s]*$"

JAPANESE = Language(
    opens=(
        r"(?:(?:はい|ありがとう(?:ございます)?|あと|それと|それから|ちなみに|では|じゃあ|ところで|了解(?:です)?|重要|注意|なお|また|すみません|最後に|まず)"
        r"[、，,：:！!\s]*){0,4}"
    ),
    begins="|".join(
        (
            rf"{_JA_FUTURE}[、,\s]*[^。]{{2,200}}{_JA_ORDER}{_JA_END}",
            rf"[^。]{{0,120}}?{_JA_EVER}[^。]{{1,160}}(?:ください|下さい|くれ|ほしい(?:です)?|欲しい(?:です)?|ないで|こと|ように|お願い(?:します|いたします)?|するな|しろ|なさい|禁止(?:です)?|ね|いけません|なりません|だめ(?:です)?|(?<!ので)(?<!んで)(?<!くて)[してんい]て|して){_JA_END}",
            r"[^。]{0,160}(?:を|と|は|って|こと)?(?:しっかり|ちゃんと|よく|必ず)?(?:覚えて(?:おいて|いて)?|忘れないで|記憶して(?:おいて)?|念頭に置いて|心に留めて(?:おいて)?)(?:ください|下さい|ね|ほしい(?:です)?|くれ|いただけ\S{0,6})?"
            + _JA_END,
            r"[^。]{1,160}(?:の方が|ほうが|方が)(?:いい|良い|よい|好き|好み|助かります|ありがたい)(?:です)?(?:ね|な)?"
            + _JA_END,
            r"[^。]{1,160}(?:が好み(?:です)?|を好みます|を希望します|が希望です|を優先して(?:ください|ほしい)\S{0,4})"
            + _JA_END,
            r"[^。]{1,40}(?:と|って)(?:呼んで|お呼び)(?:ください|下さい|ね|ほしい(?:です)?|くれ|いい(?:です)?(?:よ)?)?"
            + _JA_END,
            r"[^。]{1,200}(?:ないで(?:ください|下さい|ほしい(?:です)?|欲しい(?:です)?|くださいね)|(?:は|を)?(?:禁止|厳禁)(?:です|します|とします)?|てはいけません|ではいけません|てはなりません|ないこと|ないように(?:して(?:ください)?|お願いします)?)"
            + _JA_END,
            r"[^。]{1,160}(?:英語|日本語|フランス語|ドイツ語|中国語|スペイン語|敬語|ため口|タメ口|丁寧語|です・?ます調|である調|常体|箇条書き|マークダウン|Markdown|一文|短く|簡潔に|ひらがな)(?:だけ|のみ)?で?(?:答え|回答し|返信し|返事し|書い|話し|説明し|お願い|返し)\S{0,14}"
            + _JA_END,
            r"(?:英語|日本語|フランス語|ドイツ語|中国語|スペイン語|敬語|ため口|タメ口|丁寧語|です・?ます調|である調|常体|箇条書き|マークダウン|Markdown|簡潔に)(?:だけ|のみ)?で?(?:答え|回答し|返信し|返事し|書い|話し|説明し|お願い|返し)\S{0,14}"
            + _JA_END,
            r"[^。]{1,120}(?:する|した|場合|時|とき|際|たび|度|前|あと|後)(?:に)?(?:は)?、?(?:必ず|毎回|いつも|常に|まず|先に|事前に)[^。]{1,120}(?:ください|下さい|こと|お願いします|ほしい(?:です)?|ように|して)"
            + _JA_END,
            r"(?:もう|また|再び|これからは)?[^。]{1,120}(?:て(?:も)?いい(?:です)?(?:よ)?|て(?:も)?構いません|て(?:も)?かまいません|て(?:も)?大丈夫(?:です)?|必要はありません|なくて(?:も)?いい(?:です)?(?:よ)?|なくて(?:も)?大丈夫(?:です)?)"
            + _JA_END,
            r"(?:さっき|先ほど|前に|以前|先程)[^。]{0,80}(?:忘れて|無視して|取り消し|なかったことに)\S{0,10}" + _JA_END,
            r"[^。]{0,20}(?:ルール|規則|決まり)(?:\d+)?(?:は|：|:)\s*\S",
            r"[^。]{1,120}(?:私の)?(?:許可|承認|確認|同意)なし(?:に|で)は?[^。]{1,80}(?:ないで|禁止|こと|いけません|なりません)\S{0,8}"
            + _JA_END,
            r"(?:この|うちの|本)(?:プロジェクト|リポジトリ|チーム|会話|チャット)では、?[^。]{2,160}(?:ます|ください|こと|です|する|お願いします|禁止)"
            + _JA_END,
            r"(?:すべて|全て|全部)の?[^。]{1,120}(?:は|を|に|で)[^。]{1,120}(?:ください|下さい|こと|お願いします|ように(?:して)?|すべき(?:です)?)"
            + _JA_END,
        )
    ),
    tale=r"(?!)",
    asks=rf"[^？?]{{0,120}}(?:{_JA_FUTURE}|{_JA_EVER}|と呼んで|ないで)[^？?]{{0,120}}(?:もらえ|いただけ|くれ|頂け|ください|できます|いい)(?:ますか|ませんか|る|ません|ますでしょうか|ないでしょうか|か)?[。？?]",
    heads=rf"(?:[^：:]{{0,30}}(?:ルール|規則|お願い|決まり|好み)(?:です)?|{_JA_FUTURE}[^：:]{{0,30}}|(?:次|以下)(?:のこと)?を(?:必ず)?(?:覚えて|守って)[^：:]{{0,20}})[：:]$",
)

WESTERN = (ENGLISH, GERMAN, FRENCH, SPANISH, PORTUGUESE, ITALIAN)
"""Languages in Latin letters."""
EASTERN = (CHINESE, JAPANESE)
