from tests.e2e.histories import *
from tests.e2e.raw import *
import time


def test_a(steno, simulator):
    t = time.time()
    s = steno()
    print("start", time.time() - t)
    a = post(s.url, chat())
    print(a)
    a = post(s.url, chat(long_history()))
    print(a)
    r = s.sdk().chat.completions.create(model=MODEL, messages=long_history(), stream=True)
    for c in r:
        print(c)


def test_b(before_scripted, scripted):
    s = before_scripted()
    print(post(s.url, chat()))
    print(scripted.requests)
    print(curl(s.url + "/livez", "-i"))
