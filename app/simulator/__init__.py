"""A scripted OpenAI provider for the demo, the tests and load runs; strict like the real one."""

from app.simulator.log import Record
from app.simulator.requests import Model
from app.simulator.script import Fault, Script, ScriptedCall
from app.simulator.simulator import Simulator

__all__ = ["Fault", "Model", "Record", "Script", "ScriptedCall", "Simulator"]
