"""A scripted provider of three APIs for the demo, the tests and load runs; strict like the real ones."""

from app.simulator.log import Record
from app.simulator.rules import Model
from app.simulator.script import Fault, Script, ScriptedCall
from app.simulator.simulator import Simulator

__all__ = ["Fault", "Model", "Record", "Script", "ScriptedCall", "Simulator"]
