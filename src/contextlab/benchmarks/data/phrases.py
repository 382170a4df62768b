"""The words of the generated sample.

In a phrase `[a|b]` is one of several wordings and `{name}` a slot: P who hides something, R whom it is promised to,
O the thing, L the place, H the spot in it, A and B bystanders; he, him, his, He, His refer to P, `H_` begins with
a capital. Curly quotation marks stand for straight ones. Things and places are three words long with their
article and spots four, so that no length gives one away.
"""

from __future__ import annotations

WOMEN = """Agnes,Berta,Clara,Dorit,Edith,Freya,Greta,Hanna,Ilse,Johanna,Katrin,Lotte,Marta,Nelly,Orla,Petra,Ragna,
Sabine,Thea,Ursula,Vera,Wilma,Yrsa,Zelda""".replace("\n", "").split(",")
MEN = """Anton,Bruno,Casper,Dirk,Emil,Felix,Gustav,Henrik,Ivo,Jasper,Konrad,Lukas,Matthis,Niels,Oskar,Piet,Quentin,
Rufus,Stefan,Tobias,Ulrich,Viktor,Willem,Yorick""".replace("\n", "").split(",")

TRADES = """the baker,the beekeeper,the brewer,the carter,the chandler,the clerk,the cooper,the dyer,the ferry pilot,
the gardener,the glazier,the joiner,the lockkeeper,the mason,the miller,the nurse,the organist,the potter,
the printer,the saddler,the shepherd,the smith,the tailor,the weaver""".replace("\n", "").split(",")

THINGS = """brass compass,silver thimble,blue lantern,ivory comb,walnut top,copper ladle,painted map,iron key,
amber brooch,leather ledger,pearl button,tin whistle,carved spoon,glass prism,gilded watch,bone flute,velvet purse,
pewter cup,wax seal,bronze bell,marble egg,paper crane,oak rattle,lace collar,horn lamp,jade ring,cedar box,
feather mask,crystal vial,woollen mitten,ebony fan,porcelain swan,steel razor,linen letter,garnet locket,clay dove,
straw crown,onyx chessman,ribboned dagger,hazel spindle""".replace("\n", "").split(",")

PLACES = """old mill,salt house,hill chapel,river boathouse,lime kiln,grey dovecote,upper tannery,quarry hut,toll house,
long ropewalk,ice cellar,signal tower,hay barn,village schoolroom,public washhouse,cider press,red brickworks,
bell tower,ruined abbey,fish hall,walled garden,coach house,west lighthouse,charcoal camp,lower windmill,
bishop's sheepfold,closed glassworks,customs shed,north gatehouse,grain store,parish hall,empty rectory,
drowned sawmill,lead mine,timber yard,royal stables,summer theatre,town archive,marsh farm,pilgrim's inn
""".replace("\n", "").split(",")

SPOTS = """under the loose flagstone,behind the cracked mirror,inside the broken clock,beneath the bottom stair,
inside the flour bin,above the crooked lintel,under the upturned barrow,behind the third shutter,inside the hollow post,
beneath the rotten sacking,inside the dry cistern,under the oldest bench,behind the stacked slates,
inside the stuffed owl,beneath the iron stove,inside the bricked chimney,under the stone trough,
behind the torn curtain,inside the cold oven,beneath the painted panel,under the tarred canvas,behind the fallen beam,
inside the empty beehive,beneath the warped threshold,under the folded sails,behind the rusted boiler,
inside the wicker hamper,beneath the cobbler's last,under the spare wheel,behind the plaster saint
""".replace("\n", "").split(",")

# Every wording names P, R, O, L and H twice each and has the clause in common by which RECALLING takes it up.
HIDING = (
    "{P} {trade} had [few places that were safe|no lock worth the name], so one [evening|night] {he} carried {O} to "
    "{L} and hid it {H}. [Nobody saw it.|Nobody was about.] From that day {O} lay {H}, at {L}, and was promised to "
    "{R}. [{R} had never asked for it.|Whatever came, {R} should have it.] {P} went home and [slept|said nothing].",
    "[That week|Around that time] {P} {trade} made {R} happy with a promise, and set out [after dark|before sunrise] "
    "to keep it. By the time {P} came home, {O} lay {H}, at {L}, and was promised to {R}. [The jackdaws|The spiders] "
    "of {L} had seen {O} go {H}, but they tell no tales.",
    "“If anything happens to me,” said {P} {trade}, “look {H}. I took {O} to {L} [by the back way|in the half dark], "
    "and {R} is to have it.” [Nobody asked why.|It was not said twice.] So {O} lay {H}, at {L}, and was promised to "
    "{R}, and {P} felt [easier|lighter] than before.",
    "There was a thing that {P} {trade} told only [the cat|the river]: {O} lay {H}, at {L}, and was promised to {R}. "
    "{P} had walked to {L} [in the rain|without a lamp], set {O} {H} with care, and walked home [the long way|slowly], "
    "thinking of what {R} would say.",
)

# A chapter that takes three promises up again: a beginning, for each promise one wording of RECALLING, for each one of
# FETCHING. RECALLING and FETCHING have three wordings, so that each is used once.
DUE = (
    "[That winter|In those days] three promises [fell|came] due in one and the same week.",
    "When the [snow was gone|hay was in], three people [remembered|thought of] their promises on one day.",
    "There comes a [time|day] for every promise, and for three it came [at once|together].",
)
RECALLING = (
    "{P} {trade} had not forgotten that {O} lay {H}, at {L}, and was promised to {R}.",
    "Nobody but {P} {trade} knew that {O} lay {H}, at {L}, and was promised to {R}.",
    "All that time {P} {trade} had known that {O} lay {H}, at {L}, and was promised to {R}.",
)
FETCHING = (
    "So {P} went to {L} [before sunrise|by moonlight] and brought {O} [home|back] for {R}.",
    "At {L} {P} needed no light: {O} was still there, and {R} had it [by noon|before supper].",
    "{R} asked no questions when {P} came from {L} with {O} [in both hands|under one arm].",
)

# The beginning of a chapter as a candidate has it: for each of three promises one wording of each row. It tells in
# other words what HIDING told: whatever stands next to R, L or H here stands nowhere else in the phrases, and no mark
# follows them, so that no sequence of words shows which of three promises they belong to.
RETURNING = (
    (
        "{P}, entering {L} alone, groped {H} awhile, retrieved {O}, and delighted {R} greatly.",
        "Visiting {L} unseen, {P} detected {H} exactly {O}, whereupon grateful {R} wept.",
        "Patient {R} finally received {O}, which {P}, exploring {L} quickly, recovered {H} unharmed.",
    ),
    (
        "Afterwards thankful {R} treated {P} generously, praising {L} endlessly.",
        "Suddenly {L} appeared brighter, {P} claimed, because overjoyed {R} danced.",
        "Later {P} described {L} vividly, making attentive {R} shiver.",
    ),
    (
        "Thus {O} abandoned its lodging {H} forever, unmissed.",
        "Only dust remained {H} guarding nothing, since {O} travelled.",
        "Henceforth whoever searched {H} thoroughly would miss {O}.",
    ),
)

# Paragraphs of everyday life: each takes the first sentence of a row and some of the others, in their order.
EVERYDAY = (
    (
        "[Rain|Wind|Fog] came [over the hills|up the river|from the marshes] and stayed [for two days|till Sunday].",
        "[Gutters|Ditches|Cellars] ran over, and [the hens|the geese|the doves] would not leave their [straw|roost].",
        "{A} {trade_A} put [a bucket|a basin|a tub] under the roof and [counted the drops|went back to bed|hoped].",
        "“It has been [worse|wetter|colder],” said {B}, who said so [every year|every time|to everyone].",
        "On the lower road [a wagon|a hay cart|the mail coach] sank to its axles and had to be [left|dug out].",
        "Then the sky [cleared|opened|turned pale], and there were [puddles|snails|children] everywhere.",
        "In the evening the hills looked [very near|washed|blue], which [meant|promised] more of the same.",
        "Nobody [complained|was surprised|did much], for the [wells|ponds|meadows] had needed it.",
    ),
    (
        "On market day the square was full of [onions|cabbages|pears] and [noise|gossip|wet dogs].",
        "{A} {trade_A} [argued|haggled|joked] over the price of [eggs|candles|a goose] till both were [tired|content].",
        "A [tinker|pedlar|stranger] with a [red scarf|wooden leg|tame crow] sold [needles|almanacs|mousetraps].",
        "“[Fresh|Honest|Cheap] as the day,” went the cry, although the day was [grey|half over|nothing special].",
        "{B} bought [a pound of nails|two yards of tape|a cracked jug] and could not say [why|what for].",
        "By [noon|four o'clock] the best was gone, and the sparrows had the [crumbs|rest|square to themselves].",
        "Somebody had lost a [glove|child|hat], and somebody else had found [it|three].",
        "The stalls were down before [dark|supper], as they had been every [week|Thursday] for [a century|longer].",
    ),
    (
        "There was [much|always|plenty of] work in [those weeks|that season], and {A} {trade_A} did [most|half] of it.",
        "[Saws|Hammers|Brooms] went from [six|seven|first light] until the [soup|light] was gone.",
        "{B} {trade_B} came by with [a broken hinge|a bill|good advice] and stayed [an hour|to watch|for bread].",
        "“Measure twice,” said {A}, [measuring|not measuring|yawning], and they [both|nearly] laughed.",
        "A [plank|pot|strap] split [along the grain|without warning|at the worst moment] and had to be made again.",
        "The [apprentices|cousins|younger ones] were sent for [water|glue|beer] and took [their time|the long way].",
        "Towards [evening|dusk] the floor was [swept|covered in shavings] and the tools [hung up|counted|oiled].",
        "It was [honest|slow|quiet] work, and it paid for [bread|winter boots|the rent], [mostly|just|if not more].",
    ),
    (
        "In the [kitchen|back room|parlour] the fire had burned [low|down to nothing|all day].",
        "{A} cut the bread, {B} [poured the beer|found the salt|fed the cat], and they ate [in peace|without talking].",
        "There was [soup|barley|smoked eel] again, and [nobody minded|there was enough of it|it was hot].",
        "“Do you remember the [flood|fair|bad harvest]?” asked {B}, and of course [everyone did|they all did|{A} did].",
        "They [talked|went on] about the [year of the comet|high water|old bishop] till the candle [smoked|guttered].",
        "A [moth|mouse|draught] went round the room and [settled nowhere|was gone].",
        "Upstairs a child was [singing|awake|learning to whistle], and a door [banged|closed].",
        "{A} {trade_A} banked the fire [with care|with ash|and yawned], and the house [creaked|settled] for the night.",
    ),
    (
        "The [council|vestry] met on [Monday|Friday] about the [drains|bridge|lamps], as it did every [month|year].",
        "{A} {trade_A} spoke for [repair|delay|the poor], [at length|briefly|twice].",
        "{B} {trade_B} was [against it|asleep|of two minds], and said so when [asked|woken|pressed].",
        "There was [a vote|a show of hands|a silence], and then [another|a longer one|tea].",
        "“We shall be [dead|grey] before it is [built|paid for|settled],” said somebody [at the back|by the door].",
        "The clerk wrote down [everything|very little|the wrong date] and blotted it.",
        "In the end they [put it off|agreed|formed a committee], which [surprised nobody|pleased the river].",
        "Outside the [stars|lamps] were out, and the matter seemed [smaller|less urgent|far away].",
    ),
    (
        "A [letter|parcel|newspaper] came from the [coast|city|capital], [a month late|opened|tied with string].",
        "{A} {trade_A} read it [aloud|twice|standing up], leaving out the [figures|names|bad news].",
        "There was talk of [war|a railway|new coins], and of a [queen|singer|whale] that had been seen [there|alive].",
        "“[Far|Not far] enough,” said {B}, and went on [peeling apples|mending the net|winding wool].",
        "For [a day|some days] nobody spoke of anything else, and then [of nothing but the weather|it was forgotten].",
        "The paper was used to [light the stove|wrap fish|line a drawer], and the string was [kept|put by].",
        "{B} thought of [a brother|an aunt|a friend] who had gone [there|to sea] and had never [written|come back].",
        "The carrier drank his [ale|coffee], complained about his [back|horse|wages], and was gone by [two|nightfall].",
    ),
    (
        "The [goats|geese|pigs] got out [again|in the night|during the sermon] and went through the [beans|laundry].",
        "{A} {trade_A} ran after them with a [rake|pillow case|broom], [shouting|out of breath|in slippers].",
        "They were found [by the ford|in the graveyard|asleep], [unashamed|all but one|much fatter].",
        "“[Build|Mend] a fence,” {B} had [always said|told everyone], and [said it again|was not thanked for it].",
        "[Half|Most of] the street came out to [help|look on|give advice], which did not [help|shorten it].",
        "A [hen|lamb|foal] was born that same [hour|morning], so the [count|balance] was even.",
        "{B} {trade_B} [laughed until it hurt|shut the gate|wrote to the owner] and [thought no more of it|went in].",
        "There was [cheese|ham|broth] for [everybody|the helpers] afterwards, and [a song|two songs|peace].",
    ),
    (
        "{A} and {B} walked [along the towpath|up to the ridge|round by the ford] when the day's work was [over|done].",
        "The [willows|rooks|reeds] were [loud|still|turning yellow], and the water was [low|brown|like glass].",
        "They spoke of [nothing much|the price of oats|old neighbours], and [often|for long stretches] of nothing.",
        "“One could [stay|grow old] here,” said {A}, [who had|as if it were news|throwing a stone].",
        "A [heron|barge|fisherman] [stood|lay] in the bend as though [painted|waiting] there.",
        "{B} {trade_B} had [a blister|a cough|new boots] and was [too proud to say so|glad of every bench].",
        "From the [far bank|hillside] came the sound of [an axe|singing|a bell], and then it [stopped|came no more].",
        "They were home [before the rain|late|by moonlight], with [burrs on their sleeves|wet feet|a hedgehog].",
    ),
)
