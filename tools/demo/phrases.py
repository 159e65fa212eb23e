"""The words: every phrasing of every question, and the whole vocabulary.

Owns tables of text only. Refuses to know scenes and what is true of them (`questions.py`).

Invariant: `vocabulary()` holds every word that a question about shapes or an answer can contain,
in lower case and capitalised; the words of off-topic remarks are deliberately not in it, so the
tokenizer spells them and they are recognisable as foreign.

Fields: {kind} {kinds} {color} {ref} {other} {image} {thing} {things} {side}. "colour" stands for
both spellings and {image} for "the image", "this photo", "the second picture" and the like.
"""

from __future__ import annotations

import re

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
IMAGE_NOUNS = ("image", "image", "image", "picture", "photo")
THINGS = ("shape", "shape", "shape", "object", "thing", "figure")
ASKED_ONLY_COLORS = ("grey", "brown", "pink")

QUESTIONS: dict[str, tuple[str, ...]] = {
    "color": (
        "What colour is the {kind}?", "What colour is the {kind}?", "What colour is the {kind}?",
        "What is the colour of the {kind}?", "Which colour is the {kind}?",
        "What colour does the {kind} have?", "Which colour does the {kind} have?",
        "Tell me the colour of the {kind}.", "Name the colour of the {kind}.",
        "Can you tell me the colour of the {kind}?", "What's the colour of the {kind}?",
        "The {kind} is what colour?", "What is the {kind}'s colour?", "Colour of the {kind}?",
        "In {image}, what colour is the {kind}?", "What colour is the {kind} you see?",
        "What colour {kind} is there?", "What colour is the {kind} in {image}?",
    ),
    "sole color": (
        "What colour is it?", "What colour is the {thing}?", "What is the colour of the {thing}?",
        "What is its colour?", "Which colour is it?", "What colour is this?",
        "What colour is this {thing}?", "What colour is the {thing} in {image}?",
        "What colour do you see?", "What colour does it have?",
    ),
    "shape": (
        "Which shape is {color}?", "What shape is {color}?", "What shape is the {color} one?",
        "What is the {color} {thing}?", "What {thing} is {color}?", "Which {thing} is {color}?",
        "What kind of shape is {color}?", "What is the shape of the {color} {thing}?",
        "Which {thing} in {image} is {color}?", "What shape is the {color} {thing}?",
        "What is {color}?", "Name the {color} {thing}.", "What is {color} in {image}?",
        "What shape does the {color} {thing} have?", "What {color} {thing} do you see?",
    ),
    "sole shape": (
        "What shape is it?", "What shape is this?", "What shape is the {thing}?",
        "Which shape is it?", "What kind of shape is it?", "What shape do you see?",
        "What is the shape?", "What shape is in {image}?", "Which shape do you see?",
        "What shape is there?", "Which shape is in {image}?", "What shape does {image} show?",
        "What is the shape in {image}?", "What kind of shape is this?",
    ),
    "exists": (
        "Is there a {ref}?", "Is there a {ref}?", "Is there a {ref} in {image}?",
        "Is there a {ref} in {image}?", "Do you see a {ref}?", "Can you see a {ref}?",
        "Does {image} show a {ref}?", "Does {image} contain a {ref}?", "Does {image} have a {ref}?",
        "Is a {ref} in {image}?", "Are there any {ref}s?", "Is a {ref} there?",
        "Is there any {ref}?",
        "Do you see any {ref}s?", "Does it have a {ref}?", "Can you find a {ref}?",
        "Are there {ref}s in {image}?", "Is a {ref} shown?", "Any {ref}s?",
    ),
    "exists color": (
        "Is there anything {color}?", "Is anything {color}?", "Do you see anything {color}?",
        "Is any {thing} {color}?", "Is there something {color} in {image}?",
        "Do you see something {color}?",
    ),
    "is color": (
        "Is the {kind} {color}?", "Is the {kind} {color}?", "Is the colour of the {kind} {color}?",
        "The {kind} is {color}, right?", "Is the {kind} in {image} {color}?",
    ),
    "is kind": (
        "Is the {color} {thing} a {kind}?", "Is the {color} one a {kind}?",
        "The {color} {thing} is a {kind}, right?",
    ),
    "count": (
        "How many {things} are there?", "How many {things} are there in {image}?",
        "How many {things} do you see?", "How many {things} are in {image}?",
        "How many {things} can you see?", "How many {things} does {image} show?",
        "Count the {things}.", "What is the number of {things}?", "How many {things}?",
        "How many {things} are shown?", "How many {things} can you count?",
        "How many {things} does {image} have?",
    ),
    "where": (
        "Where is the {ref}?", "Where is the {ref}?", "Where is the {ref}?",
        "Where is the {ref} in {image}?", "Where in {image} is the {ref}?",
        "What is the position of the {ref}?", "Where do you see the {ref}?",
        "In which part of {image} is the {ref}?", "Where can I find the {ref}?",
        "Tell me where the {ref} is.", "Where is the {ref} located?",
        "What is the location of the {ref}?",
    ),
    "half x": (
        "Is the {ref} on the left or on the right?", "Is the {ref} on the left or the right?",
        "Is the {ref} on the left or right side?", "Is the {ref} left or right?",
        "Which side is the {ref} on, left or right?",
    ),
    "half y": (
        "Is the {ref} at the top or at the bottom?", "Is the {ref} at the top or the bottom?",
        "Is the {ref} in the top or bottom half?", "Is the {ref} top or bottom?",
    ),
    "is half": (
        "Is the {ref} {side}?", "Is the {ref} {side} of {image}?", "Is the {ref} {side}?",
    ),
    "size": (
        "Is the {ref} big or small?", "Is the {ref} big or small?", "Is the {ref} small or big?",
        "Is the {ref} large or small?", "How big is the {ref}?", "What size is the {ref}?",
        "What is the size of the {ref}?", "How large is the {ref}?", "Is the {ref} small or large?",
        "Tell me the size of the {ref}.",
    ),
    "is size": ("Is the {ref} {size}?", "Is the {ref} {size}?", "Is it a {size} {ref}?"),
    "extreme size": (
        "Which {thing} is the {most}?", "What is the {most} {thing}?", "Which {thing} is {most}?",
        "Which is the {most} {thing}?", "What {thing} is the {most}?", "Name the {most} {thing}.",
        "Which one is the {most}?", "Which {thing} in {image} is the {most}?",
    ),
    "compare size": (
        "Which is {more}, the {ref} or the {other}?",
        "Which one is {more}, the {ref} or the {other}?",
        "Is the {ref} or the {other} {more}?", "What is {more}, the {ref} or the {other}?",
    ),
    "is larger": ("Is the {ref} {more} than the {other}?",),
    "is related": (
        "Is the {ref} {relation} the {other}?", "Is the {ref} {relation} the {other}?",
        "Is the {ref} {relation} the {other} in {image}?",
        "The {ref} is {relation} the {other}, right?",
    ),
    "what related": (
        "What is {relation} the {ref}?", "What is {relation} the {ref}?",
        "Which {thing} is {relation} the {ref}?", "What {thing} is {relation} the {ref}?",
        "What do you see {relation} the {ref}?", "Is there anything {relation} the {ref}?",
    ),
    "how related": (
        "Where is the {ref} relative to the {other}?", "Where is the {ref} from the {other}?",
        "What is the position of the {ref} relative to the {other}?",
        "Where is the {ref} compared to the {other}?",
    ),
    "extreme place": (
        "Which {thing} is {side}?", "What {thing} is {side}?", "What is {side}?",
        "What do you see {side}?", "Which {thing} is {side} of {image}?",
        "What is {side} of {image}?",
    ),
    "cell": (
        "What is {side}?", "Which {thing} is {side}?", "What do you see {side}?",
        "What {thing} is {side}?", "What is {side} of {image}?",
    ),
    "describe": (
        "Describe {image}.", "Describe {image}.", "What do you see?", "What do you see in {image}?",
        "What is in {image}?", "What does {image} show?", "Which shapes are there?",
        "What shapes do you see?", "Which shapes do you see?", "What can you see?",
        "Tell me about {image}.", "List the {things}.", "What is this?", "What is shown here?",
        "What is shown in {image}?", "Can you describe {image}?", "What shapes are in {image}?",
        "Which shapes are in {image}?", "What is on {image}?", "Tell me what you see.",
        "What colours do you see?", "Which colours are there?", "What colours are the shapes?",
        "What shapes are there?", "What do you see here?", "Describe what you see.",
        "What can you see in {image}?", "What {things} are in {image}?", "Name the {things}.",
        "What shapes and colours do you see?", "What is it?", "What are the shapes in {image}?",
        "Describe it.", "What colours are in {image}?", "Explain {image}.",
        "What can you tell me about {image}?",
    ),
    "background": (
        "What is the background colour?", "What colour is the background?",
        "What is the colour of the background?", "Which colour is the background?",
        "What colour does the background have?", "What background colour is it?",
        "Tell me the background colour.", "What colour is the background of {image}?",
        "What is the background?", "What colour is behind the {things}?",
    ),
    "which image": (
        "Which {noun} shows a {ref}?", "Which {noun} shows a {ref}?", "Which {noun} has a {ref}?",
        "Which {noun} contains a {ref}?", "In which {noun} is there a {ref}?",
        "Which {noun} shows the {ref}?", "Which of the {noun}s shows a {ref}?",
        "In which {noun} do you see a {ref}?", "Where did you see a {ref}, in which {noun}?",
        "Which {noun} had a {ref}?",
    ),
    "how many images": (
        "How many {noun}s have I shown you?", "How many {noun}s have I shown you?",
        "How many {noun}s do you see?", "How many {noun}s did I show you?",
        "How many {noun}s are there?", "How many {noun}s have you seen?",
        "Count the {noun}s.", "How many {noun}s have I sent?", "How many {noun}s so far?",
        "How many {noun}s did I send you?", "How many {noun}s have I attached?",
    ),
}  # fmt: skip

FOLLOW_UPS: dict[str, tuple[str, ...]] = {
    "color": ("What colour is it?", "And what colour is it?", "What is its colour?",
              "And its colour?", "Which colour is it?", "What colour does it have?"),
    "shape": ("What shape is it?", "And what shape is it?", "What is its shape?", "And its shape?",
              "What kind of shape is it?", "Which shape is it?"),
    "where": ("Where is it?", "And where is it?", "Where in {image} is it?",
              "What is its position?", "Where is it in {image}?", "And its position?"),
    "size": ("Is it big or small?", "Is it small or big?", "And its size?", "How big is it?",
             "What size is it?", "What is its size?", "Is it large or small?"),
}  # fmt: skip
ELLIPSES = (
    "And the {ref}?", "And the {ref}?", "What about the {ref}?", "How about the {ref}?",
    "The {ref}?", "And what about the {ref}?", "Now the {ref}.",
)  # fmt: skip
IMAGE_ELLIPSES = (
    "And in {image}?", "And in {image}?", "What about {image}?", "How about {image}?",
    "And {image}?", "In {image}?", "And what about {image}?",
)  # fmt: skip
RELATIONS: dict[str, tuple[str, ...]] = {
    "left of": ("left of", "to the left of", "on the left of", "to the left of"),
    "right of": ("right of", "to the right of", "on the right of", "to the right of"),
    "above": ("above", "above", "over", "higher than"),
    "below": ("below", "below", "under", "lower than", "beneath"),
}
SIDES = {
    "left": ("on the left", "on the left side", "on the left"),
    "right": ("on the right", "on the right side", "on the right"),
    "top": ("at the top", "at the top", "on the top"),
    "bottom": ("at the bottom", "at the bottom", "on the bottom"),
}
SIDE_ANSWERS = {
    "left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom",
}  # fmt: skip
PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
CENTER_WORDS = ("in the middle", "in the middle", "in the centre", "in the center")
MOST = {"largest": ("largest", "biggest", "largest"), "smallest": ("smallest",)}
MORE = {"larger": ("bigger", "larger"), "smaller": ("smaller",)}
SIZES = {"big": ("big", "large"), "small": ("small", "little")}

CHAT: dict[str, tuple[tuple[str, ...], str]] = {
    "greeting": (
        ("Hello!", "Hello", "Hi!", "Hi there!", "Hey!", "Good morning!", "Good evening.", "Hi",
         "Hello there.", "Good day.", "Good afternoon.", "Hello, how are you?",
         "Hi, can you hear me?"),
        "Hello! Ask me about an image of coloured shapes.",
    ),
    "thanks": (
        ("Thank you.", "Thanks!", "Thank you very much.", "Thanks a lot.", "Great, thank you.",
         "Ok, thanks.", "Thanks", "Thank you!", "Many thanks.", "Nice, thanks."),
        "You are welcome.",
    ),
    "goodbye": (
        ("Goodbye!", "Bye!", "See you later.", "Bye bye.", "Good night.", "Bye", "See you!"),
        "Goodbye!",
    ),
    "praise": (
        ("Great!", "Very good.", "Well done!", "Nice!", "Cool.", "Ok.", "I see.", "Right.", "Good.",
         "That is right.", "Perfect!", "Correct."),
        "Ask me more about the shapes.",
    ),
    "about": (
        ("Who are you?", "What are you?", "What can you do?", "Help", "What do you know?",
         "What is your name?", "Can you help me?", "What can I ask you?", "Tell me about yourself.",
         "Are you a real model?", "How do you work?", "What do you do?", "Introduce yourself."),
        "I am a tiny demo model. I only know coloured shapes.",
    ),
}  # fmt: skip
NO_IMAGE = "I do not see an image. Please attach one."
OFF_TOPIC = "I only know coloured shapes."
OTHER_ANSWERS = (
    "There is no", "There are no shapes.", "I see no shapes.", "There is", "There are",
    "The shape is",
    "Yes, there is something", "No, there is nothing", "Nothing is", "The background is",
    "You have shown image", "No image shows", "show", "is the shape", "and", "larger smaller",
)  # fmt: skip
POLITE = ("Please tell me: ", "Tell me, ", "So, ", "Ok, ", "Now, ", "Well, ")
EXTRA_WORDS = (
    "latest last newest most recent current this these that previous other only just "
    "light dark gray image picture photo images pictures photos USER ASSISTANT Image an "
    "please 1 2 3 4 5 6 7 8 9 was were did does have has can could would should which when why how "
    "who my your his her to for with at by from as be not all both same different ones which "
    "each every"
)

_WORD = re.compile(r"[A-Za-z]+|[0-9]")


def _sources() -> list[str]:
    texts = [
        text for table in (QUESTIONS, FOLLOW_UPS) for texts in table.values() for text in texts
    ]
    texts += [*ELLIPSES, *IMAGE_ELLIPSES, *POLITE, *OTHER_ANSWERS, NO_IMAGE, OFF_TOPIC, EXTRA_WORDS]
    for table in (RELATIONS, SIDES, MOST, MORE, SIZES):
        texts += [text for words in table.values() for text in words]
    for asked, answer in CHAT.values():
        texts += [*asked, answer]
    texts += [place for line in PLACES for place in line]
    texts += [*CENTER_WORDS, *ORDINALS, *NUMBERS, *THINGS, *IMAGE_NOUNS, *ASKED_ONLY_COLORS]
    texts += [f"{thing}s" for thing in (*THINGS, *IMAGE_NOUNS)]
    return texts


def vocabulary(kinds: tuple[str, ...], colors: tuple[str, ...]) -> list[str]:
    """All words, sorted; each in lower case and capitalised."""
    words = {"color", "colors", *kinds, *colors, *(f"{kind}s" for kind in kinds)}
    for text in _sources():
        words.update(_WORD.findall(re.sub(r"\{\w+\}", " ", text)))
    plain = {word.lower() for word in words} | {"I"}
    return sorted(plain | {word.capitalize() for word in plain} | {"USER", "ASSISTANT"})
