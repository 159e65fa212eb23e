"""Remarks that have nothing to do with coloured shapes, as diverse as is practical.

Owns the list and the random spelling of unknown words. The last few sentences and nouns are held
out of training to measure whether "I only know coloured shapes." generalises.

Invariant: none of these words is in the vocabulary on purpose; some happen to be.
"""

from __future__ import annotations

import random
import string

_SENTENCES = """
What is the weather like today?|Will it rain tomorrow?|Write a poem about the sea.|Tell me a joke.
Who is the president of France?|What is the capital of Italy?|How old is the queen?
What is two plus two?|What is 7 times 8?|Solve this equation for me.|Write a Python function.
How do I cook rice?|Give me a recipe for soup.|What time is it?|What day is today?
Translate this into German.|Do you speak French?|Who wrote Hamlet?|Sing me a song.
What is the meaning of life?|Do you like music?|What is your favourite film?|Play some jazz.
How far away is the moon?|Why is the sky blue?|Why is grass green?|What do cats eat?
Can dogs fly?|Tell me about history.|Who won the match?|When did the war end?
How tall is that mountain?|Book me a flight.|Order a pizza.|Call my mother.|Open the window.
Set a timer.|What is love?|Are you happy?|Do you sleep?|How are the stocks doing?
Explain gravity.|What is quantum physics?|Write an essay.|Fix my code.|Read the text.
What does the sign say?|Who is the person in the image?|Is the man smiling?|Is she wearing a hat?
How many people are in the image?|How many cats are there?|Is there a dog in the image?
What animal is this?|What brand is the car?|What is the person doing?|Where was this photo taken?
What breed is the dog?|Is it day or night?|What is written here?|Is this a landscape?
What food is on the table?|Are the people happy?|What season is it?|Which city is this?
Do you see a face?|Is the water clean?|Count the trees.|How many windows has the house?
Who painted this?|What is the name of the artist?|Is this picture beautiful?|Do you like it?
Why is the circle red?|Who drew the shapes?|When was this image made?|What does it mean?
How heavy is the square?|What does the triangle taste like?|Can the circle sing?
Make the circle bigger.|Draw a square.|Change the colour to red.|Delete the image.
Remove the background.|Save the file.|What is the resolution?|What format is the file?
Why?|When?|How?|Really?|Maybe.|Never mind.|Nonsense.|Blah blah.|asdf|lorem ipsum|test|foo bar
I am hungry.|My name is Anna.|I live in Berlin.|It is cold outside.|You are wrong.|I love you.
Let us talk about politics.|What about football?|Give me advice.|Summarise the news.
How do I learn piano?|Which laptop should I buy?|What is a neural network?|Define entropy.
List three fruits.|Name a planet.|Spell banana.|Repeat after me.|Count to ten.|Guess a number.
Roll a dice.|What is the speed of light?|Who discovered America?|How do planes fly?
Is water wet?|What rhymes with orange?|What comes after Monday?|How many days are in a year?
Where do you live?|How old are you?|Who made you?|Do you have friends?|Can you dance?
What should I wear?|Where is my phone?|Where is Paris?|Where are the keys?|Who is there?
Write a story about a red dragon.|Tell me about the blue whale.|What is a black hole?
Show me a yellow banana.|What is the White House?|Is the green party popular?
Recommend a book.|What is on television?|Convert five miles to kilometres.|Fly me to the moon.
What is the price of gold?|Please do my homework.|Is this safe to eat?|Are there aliens?
What is inside the box?|What language is this?|Read this aloud.|Who are these people?
What is the date?|Calculate the area.|What is the square root of nine?|Make a list.
""".strip().replace("\n", "|")
_NOUNS = (
    "cat", "dog", "car", "house", "tree", "person", "man", "woman", "child", "boat", "bird",
    "horse", "flower", "table", "chair", "cup", "book", "phone", "computer", "hat", "shoe", "bus",
    "train", "plane", "bike", "apple", "banana", "cake", "fish", "cloud", "sun", "moon", "river",
    "mountain", "road", "door", "window", "bottle", "clock", "lamp", "bag", "ball", "key",
    "knife", "plate", "shirt", "guitar", "robot", "dragon", "castle", "bridge", "elephant",
    "tiger", "lion", "mouse", "cow", "sheep", "duck", "bear", "wolf", "snake", "spider", "frog",
    "pizza", "bread", "cheese", "egg", "tomato", "potato", "carrot", "dress", "coat", "glove",
    "sock", "ring", "mirror", "camera", "radio", "pencil", "paper", "letter", "flag", "sign",
    "truck", "tractor", "rocket", "island", "beach", "forest", "garden", "wall", "roof", "garage",
    "church", "school", "shop", "city", "village", "baby", "doctor", "king", "queen", "soldier",
    "ghost", "monster", "logo", "face", "hand", "eye", "nose", "zebra", "giraffe", "penguin",
)  # fmt: skip
_TEMPLATES = (
    "What colour is the {}?", "What color is the {}?", "Is there a {}?", "Do you see a {}?",
    "How many {}s are there?", "Where is the {}?", "What is the {} doing?", "Describe the {}.",
    "Is the {} big or small?", "Is there a {} in the image?", "Which {} is red?",
    "Who owns the {}?", "Is the {} red?", "And the {}?", "Can you see the {}?", "What is a {}?",
    "Tell me about the {}.",
    "How many {}s do you see?", "Does the image show a {}?", "Where did you buy the {}?",
    "Is there a {} in the picture?", "What is left of the {}?", "Draw a {}.", "I have a {}.",
)  # fmt: skip
_ALL = _SENTENCES.split("|")
SENTENCES, HELD_OUT_SENTENCES = _ALL[:-8], _ALL[-8:]
NOUNS, HELD_OUT_NOUNS = _NOUNS[:-6], _NOUNS[-6:]


def _invented(rng: random.Random) -> str:
    """A word that nobody has seen, consonants and vowels in turn more often than not."""
    length = rng.randint(3, 8)
    letters = [rng.choice("aeiou" if i % 2 else string.ascii_lowercase) for i in range(length)]
    return "".join(letters)


def off_topic(rng: random.Random, held_out: bool = False) -> str:
    """One remark."""
    sentences = HELD_OUT_SENTENCES if held_out else SENTENCES
    nouns = HELD_OUT_NOUNS if held_out else NOUNS
    roll = rng.random()
    if roll < 0.45:
        return rng.choice(sentences)
    noun = rng.choice(nouns) if roll < 0.8 or held_out else _invented(rng)
    if roll > 0.95:
        words = [rng.choice((_invented(rng), rng.choice(nouns))) for _ in range(rng.randint(1, 5))]
        return " ".join(words).capitalize() + rng.choice("?.!")
    return rng.choice(_TEMPLATES).format(noun)
